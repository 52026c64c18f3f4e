"""Numbers and kinds of the system calls that a training process blocks in, per architecture.

Source: <asm/unistd_64.h> for x86_64 and <asm-generic/unistd.h> for aarch64 of the kernel's exported headers. Only
calls that can wait are here; another one is reported by its number.
"""


def _numbered(table: str) -> dict[int, str]:
    pairs = (entry.split(":") for entry in table.split())
    return {int(number): name for name, number in pairs}


NAMES = {
    "x86_64": _numbered("""
    read:0 write:1 open:2 close:3 stat:4 fstat:5 lstat:6 poll:7 mmap:9 mprotect:10 munmap:11 brk:12 ioctl:16
    pread64:17 pwrite64:18 readv:19 writev:20 access:21 select:23 sched_yield:24 mremap:25 msync:26 madvise:28
    pause:34 nanosleep:35 sendfile:40 connect:42 accept:43 sendto:44 recvfrom:45 sendmsg:46 recvmsg:47 clone:56
    fork:57 vfork:58 execve:59 exit:60 wait4:61 semop:65 msgsnd:69 msgrcv:70 fcntl:72 flock:73 fsync:74
    fdatasync:75 truncate:76 ftruncate:77 chdir:80 rename:82 mkdir:83 rmdir:84 creat:85 unlink:87 readlink:89
    rt_sigtimedwait:128 rt_sigsuspend:130 statfs:137 fstatfs:138 sync:162 futex:202 io_getevents:208
    getdents64:217 restart_syscall:219 semtimedop:220 clock_nanosleep:230 exit_group:231 epoll_wait:232
    waitid:247 openat:257 mkdirat:258 newfstatat:262 unlinkat:263 renameat:264 readlinkat:267 faccessat:269
    pselect6:270 ppoll:271 splice:275 sync_file_range:277 utimensat:280 epoll_pwait:281 fallocate:285
    accept4:288 preadv:295 pwritev:296 recvmmsg:299 syncfs:306 sendmmsg:307 process_vm_readv:310 renameat2:316
    getrandom:318 userfaultfd:323 membarrier:324 copy_file_range:326 preadv2:327 pwritev2:328 statx:332
    io_uring_enter:426 clone3:435 openat2:437 faccessat2:439 epoll_pwait2:441 futex_waitv:449 futex_wait:455
    """),
    "aarch64": _numbered("""
    io_getevents:4 epoll_pwait:22 fcntl:25 ioctl:29 flock:32 mkdirat:34 unlinkat:35 renameat:38 statfs:43
    fstatfs:44 truncate:45 ftruncate:46 fallocate:47 faccessat:48 chdir:49 openat:56 close:57 getdents64:61
    read:63 write:64 readv:65 writev:66 pread64:67 pwrite64:68 preadv:69 pwritev:70 sendfile:71 pselect6:72
    ppoll:73 splice:76 readlinkat:78 newfstatat:79 fstat:80 sync:81 fsync:82 fdatasync:83 sync_file_range:84
    utimensat:88 exit:93 exit_group:94 waitid:95 futex:98 nanosleep:101 clock_nanosleep:115 sched_yield:124
    restart_syscall:128 rt_sigsuspend:133 rt_sigtimedwait:137 msgrcv:188 msgsnd:189 semtimedop:192 semop:193
    accept:202 connect:203 sendto:206 recvfrom:207 sendmsg:211 recvmsg:212 brk:214 munmap:215 mremap:216
    clone:220 execve:221 mmap:222 mprotect:226 msync:227 madvise:233 accept4:242 recvmmsg:243 wait4:260
    syncfs:267 sendmmsg:269 process_vm_readv:270 renameat2:276 getrandom:278 userfaultfd:282 membarrier:283
    copy_file_range:285 preadv2:286 pwritev2:287 statx:291 io_uring_enter:426 clone3:435 openat2:437
    faccessat2:439 epoll_pwait2:441 futex_waitv:449 futex_wait:455
    """),
}

# What kind of wait each call is. Closing a file of a network mount writes its data back: a sync.
_BY_KIND = {
    "sleep": "nanosleep clock_nanosleep",
    "futex": "futex futex_wait futex_waitv",
    "poll": "poll ppoll select pselect6 epoll_wait epoll_pwait epoll_pwait2",
    "read": "read pread64 readv preadv preadv2",
    "write": "write pwrite64 writev pwritev pwritev2 sendfile splice ftruncate fallocate copy_file_range",
    "recv": "recvfrom recvmsg recvmmsg",
    "send": "sendto sendmsg sendmmsg",
    "accept": "accept accept4",
    "connect": "connect",
    "open": "open openat openat2 creat",
    "stat": """
        stat lstat fstat newfstatat statx access faccessat faccessat2 readlink readlinkat getdents64 statfs
        fstatfs chdir mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 truncate utimensat
    """,
    "sync": "fsync fdatasync sync syncfs sync_file_range close",
    "lock": "flock fcntl",
    "child": "wait4 waitid",
    "ioctl": "ioctl",
}
KINDS = {name: kind for kind, names in _BY_KIND.items() for name in names.split()}
