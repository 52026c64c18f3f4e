"""``perfwatch explain``: what a verdict means, from the page of its cause."""

from typing import TYPE_CHECKING, Annotated

from perfwatch.options import Argument, Json, nearest

if TYPE_CHECKING:
    from perfwatch.triage.rule import Rule


def _causes(incomplete: str) -> list[str]:
    from perfwatch.triage.rules import RULES

    return [name for rule in RULES for name in (rule.cause.name, *rule.cause.also) if name.startswith(incomplete)]


def explain(
    cause: Annotated[
        str | None,
        Argument(
            "[CAUSE]", help="The cause that a verdict names, or a state; without it, list them all.", complete=_causes
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Say what a cause means.

    And how it is recognised, what it is mistaken for and what to do next.

    \b
    Examples:
      perfwatch explain                  every cause that perfwatch can name
      perfwatch explain hung
      perfwatch explain stuck_worker
      perfwatch explain --json | jq -r '.causes[] | [.state, .cause] | @tsv'
    """
    import shutil

    from perfwatch.errors import UsageError
    from perfwatch.failures import NAMES
    from perfwatch.report.explanation import end_page, entry, fitted, page, sentence
    from perfwatch.triage.rules import RULES

    width = min(100, shutil.get_terminal_size().columns)  # longer lines are hard to read
    rules = {rule.cause.name: rule for rule in RULES}
    wanted = (cause or "").strip().lower().replace("-", "_").replace(" ", "_")
    states = dict.fromkeys(rule.cause.state for rule in RULES)
    meant = [one for one in RULES if cause is None or wanted in (one.cause.state, one.cause.name, *one.cause.also)]
    if json and meant:
        _print_json(meant)
        return
    if cause is None or wanted in states:
        for state in states if cause is None else (wanted,):
            print(f"{state}:")
            for name, rule in rules.items():
                if rule.cause.state == state:
                    print(entry(name, sentence(name), max(map(len, rules)), width))
        return
    rules |= {form: rule for rule in RULES for form in rule.cause.also}
    if wanted in NAMES:
        print(f"{wanted}, a form of {rules[wanted].cause.name}\n")
        print(f"{fitted(end_page(NAMES[wanted]), width)}\n")
    if wanted not in rules:
        words = (name for name in sorted(rules) if any(one.startswith(wanted) for one in name.split("_")))
        within = [f"perfwatch explain {name}" for name in words if len(wanted) > 2]
        advice = "\n".join(within[:5]) or nearest(wanted, rules) or "perfwatch explain lists them all"
        raise UsageError(f"there is no cause {cause}", advice)
    rule = rules[wanted]
    print(f"{rule.cause.name} ({rule.cause.state}; usually fixed in: {rule.cause.owner.replace('_', ' ')})\n")
    print(fitted(page(rule.cause.name), width))
    if rule.cause.also and wanted == rule.cause.name:
        forms = "# Forms\n\n## Its forms\n\n" + ", ".join(rule.cause.also)
        print(f"\n{fitted(forms, width)}")


def _print_json(rules: "list[Rule]") -> None:
    from perfwatch.report.explanation import page, sentence
    from perfwatch.text import json_text

    causes = [
        {
            "cause": rule.cause.name,
            "state": rule.cause.state,
            "owner": rule.cause.owner,
            "forms": list(rule.cause.also),
            "sentence": sentence(rule.cause.name),
            "page": page(rule.cause.name),
        }
        for rule in rules
    ]
    print(json_text({"schema": "perfwatch.explain/1", "causes": causes}))
