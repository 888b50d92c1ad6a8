/* Notes which files a program opens, as sitecustomize.py does for Python; built and preloaded by the recorder.

   A path is noted before it is opened, once in each process: r (to read), a (to read, and not there), w (to write),
   l (a folder is listed), s (the first process that is watched, with its number). No content is. Files of the system and of
   packages are left out. Errors are silent: a program must not notice. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLOTS (1u << 16)
#define DIGITS 10
static _Atomic uint64_t seen[SLOTS];
static char log_path[PATH_MAX];

static const char *const SYSTEM[] = {"/usr/", "/lib", "/bin/", "/sbin/", "/etc/", "/proc/", "/sys/", "/dev/", "/run/", 0};
static const char *const PACKAGES[] = {"/site-packages/", "/dist-packages/", "/lib/python3", "/__pycache__", 0};

/* Tells whether a path is new to this process. */
static int is_new(const char *path, char kind) {
    uint64_t hash = 1469598103934665603ull ^ (unsigned char)kind;
    for (const char *each = path; *each; each++) hash = (hash ^ (unsigned char)*each) * 1099511628211ull;
    if (!hash) hash = 1;
    for (unsigned step = 0; step < 64; step++) {
        _Atomic uint64_t *slot = &seen[(hash + step) % SLOTS];
        uint64_t empty = 0;
        if (atomic_compare_exchange_strong(slot, &empty, hash)) return 1;
        if (empty == hash) return 0;
    }
    return 1;
}

static void note(char kind, const char *path) {
    char line[2 * PATH_MAX + 4];
    size_t length = strlen(path), at = 0;
    if (length >= PATH_MAX) return;
    line[at++] = kind;
    line[at++] = ' ';
    for (size_t each = 0; each < length; each++, at += 2) {
        static const char digits[] = "0123456789abcdef";
        line[at] = digits[(unsigned char)path[each] >> 4];
        line[at + 1] = digits[(unsigned char)path[each] & 15];
    }
    line[at++] = '\n';
    /* A descriptor that is kept may be closed by the program, and be another file then. */
    int descriptor = (int)syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0) return;
    ssize_t written = write(descriptor, line, at);
    (void)written;
    close(descriptor);
}

static void opened(char kind, int folder, const char *path) {
    if (!log_path[0] || !path || !path[0]) return;
    int before = errno;
    char whole[PATH_MAX];
    size_t length = strlen(path), at = 0;
    if (path[0] != '/') {
        if (folder == AT_FDCWD) {
            if (!getcwd(whole, sizeof whole)) goto end;
            at = strlen(whole);
        } else {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t read = readlink(link, whole, sizeof whole - 1);
            if (read < 0) goto end;
            at = (size_t)read;
        }
        if (at + 1 < sizeof whole) whole[at++] = '/';
    }
    if (at + length >= sizeof whole) goto end;
    memcpy(whole + at, path, length + 1);
    for (const char *const *each = SYSTEM; *each; each++)
        if (!strncmp(whole, *each, strlen(*each))) goto end;
    for (const char *const *each = PACKAGES; *each; each++)
        if (strstr(whole, *each)) goto end;
    if (!strcmp(whole, log_path) || !is_new(whole, kind)) goto end;
    struct stat status;
    note(kind == 'r' && lstat(whole, &status) ? 'a' : kind, whole);
end:
    errno = before;
}

static char kind_of(int flags) {
    if (flags & O_DIRECTORY) return 'l';
    return flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND) ? 'w' : 'r';
}

static char kind_of_mode(const char *mode) { return mode && (mode[0] != 'r' || strchr(mode, '+')) ? 'w' : 'r'; }

/* The recorder leaves room for a number in FAIRMILE_PRELOADED, so that nothing is allocated for it: most processes are
   over in less time than that takes. */
__attribute__((constructor)) static void start(void) {
    const char *path = getenv("FAIRMILE_OPENED");
    size_t length = path ? strlen(path) : 0;
    if (!length || length >= sizeof log_path) return;
    memcpy(log_path, path, length + 1);
    char number[DIGITS + 1] = {0};
    unsigned left = (unsigned)getpid();
    for (int at = DIGITS; at-- > 0; left /= 10) number[at] = (char)('0' + left % 10);
    char *before = getenv("FAIRMILE_PRELOADED");
    /* Of the processes that a run starts, only the first is asked for. */
    int is_first = !before || !before[strspn(before, "0")];
    if (before && strlen(before) == DIGITS)
        memcpy(before, number, DIGITS); /* sitecustomize.py of the same process leaves it to us */
    else
        setenv("FAIRMILE_PRELOADED", number, 1);
    if (is_first) note('s', number + strspn(number, "0"));
}

#define NEXT(name) \
    static __typeof__(name) *next; \
    if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = (mode_t)va_arg(rest, int); \
        va_end(rest); \
    }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        NEXT(name); \
        MODE(flags) \
        opened(kind_of(flags), AT_FDCWD, path); \
        return next(path, flags, mode); \
    }
#define OPENAT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        NEXT(name); \
        MODE(flags) \
        opened(kind_of(flags), folder, path); \
        return next(folder, path, flags, mode); \
    }
#define FOPEN(name) \
    FILE *name(const char *path, const char *mode) { \
        NEXT(name); \
        opened(kind_of_mode(mode), AT_FDCWD, path); \
        return next(path, mode); \
    }

OPEN(open)
OPENAT(openat)
FOPEN(fopen)

DIR *opendir(const char *path) {
    NEXT(opendir);
    opened('l', AT_FDCWD, path);
    return next(path);
}

#ifdef __GLIBC__
OPEN(open64)
OPENAT(openat64)
FOPEN(fopen64)

/* What open becomes where programs are built with _FORTIFY_SOURCE. */
#define OPEN_2(name) \
    int name(const char *path, int flags); \
    int name(const char *path, int flags) { \
        NEXT(name); \
        opened(kind_of(flags), AT_FDCWD, path); \
        return next(path, flags); \
    }
#define OPENAT_2(name) \
    int name(int folder, const char *path, int flags); \
    int name(int folder, const char *path, int flags) { \
        NEXT(name); \
        opened(kind_of(flags), folder, path); \
        return next(folder, path, flags); \
    }
OPEN_2(__open_2)
OPEN_2(__open64_2)
OPENAT_2(__openat_2)
OPENAT_2(__openat64_2)
#endif
