"use strict";
// The page is complete without this script. It adds zooming, the values at the cursor, keys, and details that are open in print.
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const between = (least, value, most) => Math.min(most, Math.max(least, value));

function timeline(root) {
  const width = +root.dataset.width, begun = +root.dataset.begun, scale = root.dataset.seconds / width;
  const steps = JSON.parse(root.dataset.steps), least = 20;
  const [over, ticks, cursor, picked, tip, overview, grey] = [".over", ".ticks", ".cursor", ".picked", ".tip", ".overview", ".window"]
    .map(one => root.querySelector(one));
  const lanes = all(".lane", root).map(lane => ({
    svg: lane.querySelector("svg"), kind: lane.dataset.kind, unit: +lane.dataset.unit, height: +lane.dataset.height,
    lines: all("path[data-name]", lane).map((path, place) => ({ points: points(path), value: all(".value", lane)[place] })),
    things: all(".thing", lane).map(thing => {
      const text = thing.querySelector("title").textContent;
      thing.querySelector("title").remove();  // its own tooltip would lie over ours
      thing.setAttribute("aria-label", text);
      return { from: +thing.dataset.from, to: +thing.dataset.to, row: +thing.dataset.row, text };
    }),
  }));
  let from = 0, to = width, at = null, pressed = null;

  // The pieces of a path as [x, y, number of the piece], y downwards.
  function points(path) {
    const found = [];
    let x = 0, y = 0, piece = 0, last = "";
    for (const [, command, rest] of path.getAttribute("d").matchAll(/([MVlh])([^MVlh]*)/g)) {
      const numbers = (rest.match(/-?\d+/g) ?? []).map(Number);
      if (command === "M") { [x, y] = numbers; piece += 1; if (!path.dataset.filled) found.push([x, y, piece]); }
      else if (command === "V" && last === "M") { y = numbers[0]; found.push([x, y, piece]); }
      else if (command === "l") for (let i = 0; i < numbers.length; i += 2) found.push([x += numbers[i], y += numbers[i + 1], piece]);
      last = command;
    }
    return found;
  }

  function nearest(points, x, reach) {
    let low = 0, high = points.length;
    while (low < high) { const middle = (low + high) >> 1; if (points[middle][0] < x) low = middle + 1; else high = middle; }
    const [before, after] = [points[low - 1], points[low]];
    if (before && after && before[2] === after[2]) return x - before[0] < after[0] - x ? before : after;
    return [before, after].find(one => one && Math.abs(one[0] - x) <= reach);
  }

  function shown(kind, value) {
    if (kind === "share") return `${(100 * value).toFixed(1)} %`;
    if (kind === "watts") return `${value.toFixed(0)} W`;
    return value > 0 && value < 1 ? `${Number((value * 1000).toPrecision(3))} ms` : `${Number(value.toPrecision(4))} s`;
  }

  const pixel = () => (to - from) / (over.clientWidth || 1);
  const date = x => new Date((begun + x * scale) * 1000).toISOString();
  const clock = (x, step) => step >= 86400 ? date(x).slice(5, 10) : date(x).slice(11, step >= 60 ? 16 : step >= 1 ? 19 : 22);

  function draw() {
    for (const lane of lanes) lane.svg.setAttribute("viewBox", `${from} 0 ${to - from} ${lane.height}`);
    const seconds = (to - from) * scale, most = between(2, Math.floor(over.clientWidth / 90), 8);
    const step = steps.find(one => seconds / one <= most) ?? 86400 * Math.ceil(seconds / 86400 / most);
    ticks.replaceChildren();
    for (let time = Math.ceil((begun + from * scale) / step) * step; time <= begun + to * scale; time += step) {
      const tick = ticks.appendChild(document.createElement("span")), x = (time - begun) / scale;
      tick.style.left = `${100 * (x - from) / (to - from)}%`;
      tick.textContent = clock(x, step);
    }
    grey.style.left = `${100 * from / width}%`;
    grey.style.width = `${100 * (to - from) / width}%`;
    root.dataset.from = from * scale;
    root.dataset.to = to * scale;
    show();
  }

  function zoom(first, last) {
    const span = between(least, last - first, width);
    from = Math.round(between(0, first, width - span));
    to = Math.round(from + span);
    if (at !== null) at = between(from, at, to);
    draw();
  }

  // The values and the events at the cursor; row: of the events lane alone, where the pointer is over one.
  function show(row = null) {
    cursor.hidden = tip.hidden = at === null;
    for (const lane of lanes)
      for (const line of lane.lines) {
        const found = at === null ? undefined : nearest(line.points, at, 8 * pixel());
        line.value.textContent = found ? shown(lane.kind, (lane.height - found[1]) * lane.unit) : "";
      }
    if (at === null) return;
    const place = (at - from) / (to - from), near = 6 * pixel();
    cursor.style.left = `${100 * place}%`;
    const texts = lanes.flatMap(lane => lane.things)
      .filter(one => one.from - near <= at && at <= one.to + near && (row === null || one.row === row));
    const lines = texts.slice(-4).map(one => one.text);
    if (texts.length > 4) lines.unshift(`${texts.length - 4} more here`);
    tip.replaceChildren(...[`${clock(at, 0.1)} UTC`, ...lines].map((text, place) => {
      const line = document.createElement(place ? "div" : "b");
      line.textContent = text;
      return line;
    }));
    tip.style.left = `${between(0, place * over.clientWidth + 12, Math.max(0, over.clientWidth - tip.offsetWidth))}px`;
  }

  const x = (event, first = from, last = to) => {
    const box = over.getBoundingClientRect();
    return first + between(0, (event.clientX - box.left) / (box.width || 1), 1) * (last - first);
  };
  const rowAt = event => {
    const svg = event.target.closest(".events svg");
    return svg ? Math.floor((event.clientY - svg.getBoundingClientRect().top) / svg.clientHeight * +root.dataset.rows) : null;
  };

  root.addEventListener("pointerdown", event => {
    if (event.button !== 0 || event.target.closest("button")) return;
    const whole = overview.contains(event.target);
    const here = whole ? x(event, 0, width) : x(event);
    pressed = { whole, here, page: event.clientX, moved: false, from, to, drags: whole && to - from < width && from <= here && here <= to };
    root.setPointerCapture(event.pointerId);
  });
  root.addEventListener("pointermove", event => {
    if (pressed === null) {
      at = overview.contains(event.target) ? x(event, 0, width) : x(event);
      at = between(from, at, to);
      tip.style.top = `${between(0, event.clientY - root.getBoundingClientRect().top + 14, root.clientHeight)}px`;
      show(rowAt(event));
      return;
    }
    pressed.moved ||= Math.abs(event.clientX - pressed.page) > 5;
    if (!pressed.moved) return;
    const here = pressed.whole ? x(event, 0, width) : x(event);
    if (pressed.drags) { zoom(pressed.from + here - pressed.here, pressed.to + here - pressed.here); return; }
    pressed.span = [Math.min(here, pressed.here), Math.max(here, pressed.here)];
    const [first, last] = pressed.whole ? [0, width] : [from, to];
    picked.hidden = false;
    picked.style.left = `${100 * (pressed.span[0] - first) / (last - first)}%`;
    picked.style.width = `${100 * (pressed.span[1] - pressed.span[0]) / (last - first)}%`;
  });
  const release = event => {
    if (pressed === null) return;
    const { moved, span, whole, here } = pressed;
    pressed = null;
    picked.hidden = true;
    if (event.type !== "pointerup") return;
    if (span) zoom(...span);
    else if (!moved && whole && to - from < width) zoom(here - (to - from) / 2, here + (to - from) / 2);
    else if (!moved) { at = between(from, here, to); show(rowAt(event)); }
  };
  root.addEventListener("pointerup", release);
  root.addEventListener("pointercancel", release);
  root.addEventListener("pointerleave", () => { if (pressed === null) { at = null; show(); } });
  root.addEventListener("dblclick", () => zoom(0, width));

  function around(factor) {
    const middle = at ?? (from + to) / 2;
    zoom(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }
  const move = share => {
    at = (at ?? (from + to) / 2) + share * (to - from);
    if (at < from || at > to) zoom(from + share * (to - from), to + share * (to - from));
    at = between(from, at, to);
    tip.style.top = "1.6rem";
    show();
  };
  const does = {
    "+": () => around(0.5), "=": () => around(0.5), "-": () => around(2), "0": () => zoom(0, width),
    ArrowLeft: event => move(event.shiftKey ? -0.1 : -0.01), ArrowRight: event => move(event.shiftKey ? 0.1 : 0.01),
    Home: () => move(-1), End: () => move(1), Escape: () => { at = null; pressed = null; picked.hidden = true; zoom(0, width); },
  };
  root.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target !== root || !does[event.key]) return;
    event.preventDefault();
    does[event.key](event);
  });
  for (const button of all("button", root)) button.addEventListener("click", () => does[button.dataset.key]({}));
  addEventListener("resize", draw);
  root.classList.add("live");
  draw();
}

function flame(root) {
  const boxes = all("button", root);
  const choose = box => {
    root.style.setProperty("--from", box.style.getPropertyValue("--left"));
    root.style.setProperty("--span", box.style.getPropertyValue("--wide"));
    for (const one of boxes) one.classList.toggle("caller", +one.dataset.row < +box.dataset.row);
  };
  const side = box => box.getBoundingClientRect().left;
  const next = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  root.addEventListener("click", event => { const box = event.target.closest("button"); if (box) choose(box); });
  root.addEventListener("keydown", event => {
    if (event.key === "Escape") { choose(boxes[0]); return; }
    const way = next[event.key], here = document.activeElement;
    if (!way || !boxes.includes(here)) return;
    event.preventDefault();
    const row = +here.dataset.row + way[0];
    const found = boxes.filter(one => +one.dataset.row === row && one !== here && (way[1] === 0 || Math.sign(side(one) - side(here)) === way[1]))
      .sort((one, other) => Math.abs(side(one) - side(here)) - Math.abs(side(other) - side(here)))[0];
    if (found) { here.tabIndex = -1; found.tabIndex = 0; found.focus(); }
  });
}

const opened = [];
addEventListener("beforeprint", () => { for (const one of all("details:not([open])")) { one.open = true; opened.push(one); } });
addEventListener("afterprint", () => { for (const one of opened.splice(0)) one.open = false; });
for (const one of all("#timeline")) timeline(one);
for (const one of all("#flame")) flame(one);
