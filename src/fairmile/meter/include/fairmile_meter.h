/* Times, counters and data exchanged, from inside a C, C++ or Fortran program: the same log that fairmile.meter writes.

   One file of the program holds the code, as its first lines; all others only include the header:

       #define FAIRMILE_METER_IMPLEMENTATION
       #include "fairmile_meter.h"

       int32_t step = fairmile_timer("step");                 once
       fairmile_start(step);                                  in the loop
       fairmile_stop(step);

   Lines go to the file that FAIRMILE_EVENTS names, beside those of all other processes of the run. Without it every
   call returns at once. Events wait in a ring of their thread until it is full, a second is over, or the program ends
   by exit() or by the end of main(); what ends otherwise loses the last second. All functions may be called by any
   thread, also after fork(), but not in a signal handler. Nothing here ends the program or reports to it: a disk that
   refuses is told once on stderr, and what was not written is kept for a while.

   C99 or C++11, POSIX threads (-pthread on older systems), GCC, Clang and compilers that speak their dialect. */

#if defined(FAIRMILE_METER_IMPLEMENTATION) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE 1
#endif

#ifndef FAIRMILE_METER_H
#define FAIRMILE_METER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { FAIRMILE_PUT = 0, FAIRMILE_GET = 1 };

/* Both are optional: the first call of any other function begins, the end of the program ends. */
void fairmile_initialise(void);
void fairmile_finalise(void);
/* Return 1 while something is recorded: inside of a run, unless paused; else 0. */
int fairmile_recording(void);
/* Record nothing until resumed; timers that run at that moment are forgotten. */
void fairmile_pause(void);
void fairmile_resume(void);
/* Write what was recorded so far. */
void fairmile_flush(void);

/* Say what this process is: "solver", "trainer", "inference"; FAIRMILE_COMPONENT says it without a change. */
void fairmile_component(const char *name);
/* Note a fact about this process. */
void fairmile_metadata(const char *name, const char *value);
/* Give this thread a name, and its place in the log now rather than with its first event. */
void fairmile_register_thread(const char *name);

/* A handle is made once for each name and may be used by all threads; outside of a run it is 0, which does nothing. */
int32_t fairmile_timer(const char *name);
/* A timer that runs already starts once more inside itself; a stop belongs to the last start of its thread. */
void fairmile_start(int32_t timer);
void fairmile_stop(int32_t timer);
void fairmile_start_string(const char *name);
void fairmile_stop_string(const char *name);

/* One turn of a loop: "step", 17. */
void fairmile_phase_start(const char *prefix, int64_t iteration);
void fairmile_phase_stop(const char *prefix, int64_t iteration);

/* A number that changes: the length of a queue, a residual. */
int32_t fairmile_counter(const char *name);
void fairmile_sample(int32_t counter, double value);

/* Something that happens at one moment. */
void fairmile_event(const char *name);

/* Data that goes to (FAIRMILE_PUT) or comes from (FAIRMILE_GET) another component, which may be NULL or "".
   begin, before anything is waited for; ready, optional, when the data or the peer is there and bytes begin to move;
   end, when all is done. A put and its get have the same key and version; -1 stands for none and for unknown bytes. */
int32_t fairmile_exchange(int how, const char *key, const char *peer);
void fairmile_exchange_begin(int32_t exchange);
void fairmile_exchange_ready(int32_t exchange);
void fairmile_exchange_end(int32_t exchange, int64_t version, int64_t bytes);

#ifdef __cplusplus
}
#endif

#endif /* FAIRMILE_METER_H */

#if defined(FAIRMILE_METER_IMPLEMENTATION) && !defined(FAIRMILE_METER_IMPLEMENTED)
#define FAIRMILE_METER_IMPLEMENTED

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#ifndef CLOCK_MONOTONIC
#error "define FAIRMILE_METER_IMPLEMENTATION and include fairmile_meter.h before any other header of this file"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define FMM_RING 2048u              /* records of a thread that no line tells yet; a power of two */
#define FMM_FEW 64u                 /* numbers that a line tells as such; more are told as base64 */
#define FMM_MOST_NAMES (1 << 18)    /* of timers, counters and exchanges */
#define FMM_LONGEST_NAME (64u << 10)
#define FMM_LONGEST_VALUE (1u << 20)
#define FMM_DEEPEST (1u << 16)      /* starts of one timer without a stop */
#define FMM_UNWRITTEN (256u << 10)  /* bytes of lines before the thread that adds one writes them */
#define FMM_HELD (64u << 20)        /* bytes that are kept while the disk refuses */
#define FMM_CLOCK CLOCK_MONOTONIC
#ifdef __APPLE__
#undef FMM_CLOCK
#define FMM_CLOCK CLOCK_UPTIME_RAW  /* the clock of Python's monotonic_ns there */
#endif

enum { FMM_TIMER = 1, FMM_PHASE = 2, FMM_COUNTER = 3, FMM_EVENT = 4, FMM_EXCHANGE = 5 };
/* IDLE: inside of a run, but nobody writes yet. */
enum { FMM_UNKNOWN = 0, FMM_OFF = 1, FMM_PAUSED = 2, FMM_IDLE = 3, FMM_ON = 4 };

typedef struct {
  char *bytes;
  size_t size, room;
} fmm_text;

typedef struct {
  int32_t kind;
  uint32_t length;
  uint64_t hash;
  char *raw;         /* what was given, two texts of an exchange with a NUL between */
  char *head;        /* the line up to its numbers */
  char *about;       /* what stands behind them, or NULL */
  int32_t first;     /* of its records while a ring is emptied, else -1 */
  int32_t last;
  int32_t handle;
} fmm_name;

typedef struct fmm_table {
  struct fmm_table *older; /* somebody may still read it */
  size_t mask, count;
  fmm_name **entries;
} fmm_table;

typedef struct {
  int32_t handle;
  int32_t unused;
  int64_t start, end, wait, bytes, version; /* of a phase `wait` is the iteration, of a counter `end` the bits */
} fmm_record;

typedef struct {
  int64_t start, more; /* of a phase the iteration, of an exchange when it was ready */
} fmm_open;

typedef struct {
  fmm_open *open;
  uint32_t depth, room, epoch;
} fmm_slot;

typedef struct fmm_thread {
  struct fmm_thread *next;
  fmm_record *ring;
  uint32_t head; /* only its own thread moves it on */
  uint32_t tail; /* only who holds fmm_lists does */
  int32_t number;
  int ended;
  fmm_slot *slots;
  uint32_t slots_count;
} fmm_thread;

/* Who takes both takes fmm_file first. */
static pthread_mutex_t fmm_file = PTHREAD_MUTEX_INITIALIZER;  /* the descriptor, and what waits to be written */
static pthread_mutex_t fmm_lists = PTHREAD_MUTEX_INITIALIZER; /* names, threads, the lines that are ready */
static pthread_mutex_t fmm_pause = PTHREAD_MUTEX_INITIALIZER; /* the sleep of the flusher */
static pthread_cond_t fmm_stop = PTHREAD_COND_INITIALIZER;

static int fmm_state = FMM_UNKNOWN;
static uint32_t fmm_epoch = 1; /* timers started in an earlier one are forgotten */
static __thread fmm_thread *fmm_self;

static fmm_table *fmm_names;
static fmm_name **fmm_by_index;
static int32_t fmm_index_room, fmm_index_count;
static fmm_thread *fmm_threads;
static int32_t fmm_threads_count;
static pthread_key_t fmm_key;
static int fmm_registered;
static fmm_text fmm_lines;
static char *fmm_component_json;
static int64_t fmm_lost_records, fmm_lost_names, fmm_unmatched;
static int32_t fmm_next[FMM_RING], fmm_touched[FMM_RING];
static unsigned char fmm_scratch[FMM_RING * 16];

static char *fmm_path;
static char fmm_tail[48];
static int64_t fmm_wall_ns, fmm_clock_ns;
static int fmm_descriptor = -1, fmm_announced;
static dev_t fmm_device;
static ino_t fmm_inode;
static fmm_text fmm_held;
static int64_t fmm_failures, fmm_untold;
static char fmm_reason[160];

static pthread_t fmm_flusher;
static int fmm_flusher_runs, fmm_flusher_stops;

static int64_t fmm_clock(clockid_t which) {
  struct timespec now;
  clock_gettime(which, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t fmm_now(void) { return fmm_clock(FMM_CLOCK); }

/* ---- texts ---- */

static int fmm_reserve(fmm_text *text, size_t more) {
  size_t room = text->room ? text->room : 4096;
  char *bytes;
  if (more > SIZE_MAX / 4 || text->size > SIZE_MAX / 4) return 0;
  if (text->size + more <= text->room) return 1;
  while (room < text->size + more) room *= 2;
  bytes = (char *)realloc(text->bytes, room);
  if (!bytes) return 0;
  text->bytes = bytes;
  text->room = room;
  return 1;
}

static int fmm_add(fmm_text *text, const char *bytes, size_t size) {
  if (!fmm_reserve(text, size)) return 0;
  if (size) memcpy(text->bytes + text->size, bytes, size);
  text->size += size;
  return 1;
}

static int fmm_say(fmm_text *text, const char *words) { return fmm_add(text, words, strlen(words)); }

/* 20 characters hold any number; who calls has reserved them. */
static void fmm_digits(fmm_text *text, int64_t value) {
  char digits[24];
  int at = (int)sizeof digits;
  uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
  do {
    digits[--at] = (char)('0' + rest % 10);
    rest /= 10;
  } while (rest);
  if (value < 0) digits[--at] = '-';
  memcpy(text->bytes + text->size, digits + at, sizeof digits - (size_t)at);
  text->size += sizeof digits - (size_t)at;
}

static int fmm_number(fmm_text *text, int64_t value) {
  if (!fmm_reserve(text, 24)) return 0;
  fmm_digits(text, value);
  return 1;
}

/* How many bytes the character of UTF-8 has that begins here; 0 where none does. */
static size_t fmm_character(const unsigned char *at, size_t left) {
  size_t size, n;
  uint32_t code;
  if (at[0] < 0x80) return 1;
  if (at[0] >= 0xC2 && at[0] <= 0xDF) {
    size = 2;
    code = at[0] & 0x1Fu;
  } else if ((at[0] & 0xF0) == 0xE0) {
    size = 3;
    code = at[0] & 0x0Fu;
  } else if (at[0] >= 0xF0 && at[0] <= 0xF4) {
    size = 4;
    code = at[0] & 0x07u;
  } else {
    return 0;
  }
  if (size > left) return 0;
  for (n = 1; n < size; n++) {
    if ((at[n] & 0xC0) != 0x80) return 0;
    code = code << 6 | (at[n] & 0x3Fu);
  }
  if ((size == 3 && code < 0x800) || (size == 4 && code < 0x10000)) return 0;
  return code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF) ? 0 : size;
}

/* The text between quotes; bytes that are no UTF-8 become U+FFFD. */
static int fmm_escape(fmm_text *text, const char *words, size_t size) {
  static const char hex[] = "0123456789abcdef";
  const unsigned char *at = (const unsigned char *)words;
  size_t n = 0;
  while (n < size) {
    size_t width = fmm_character(at + n, size - n);
    if (!fmm_reserve(text, 8)) return 0;
    if (!width) {
      fmm_add(text, "\\ufffd", 6);
      width = 1;
    } else if (at[n] < 0x20 || at[n] == 0x7F) {
      char code[7] = "\\u00";
      code[4] = hex[at[n] >> 4];
      code[5] = hex[at[n] & 15];
      fmm_add(text, code, 6);
    } else {
      if (at[n] == '"' || at[n] == '\\') fmm_add(text, "\\", 1);
      fmm_add(text, words + n, width);
    }
    n += width;
  }
  return 1;
}

static int fmm_quote(fmm_text *text, const char *words, size_t most) {
  size_t size = words ? strnlen(words, most) : 0;
  int cut = words && words[size] != '\0'; /* strnlen() looked at `most` bytes at most, and the next one is there */
  return fmm_add(text, "\"", 1) && fmm_escape(text, words ? words : "", size) && (!cut || fmm_say(text, "\\u2026")) &&
         fmm_add(text, "\"", 1);
}

/* The bytes as a text that free() takes; NULL without memory. */
static char *fmm_take(fmm_text *text) {
  if (!fmm_add(text, "", 1)) {
    free(text->bytes);
    return NULL;
  }
  return text->bytes;
}

static void fmm_free(fmm_text *text) {
  free(text->bytes);
  text->bytes = NULL;
  text->size = text->room = 0;
}

/* ---- lines, made of the records of a ring; fmm_lists is held ---- */

static void fmm_base64(fmm_text *text, const unsigned char *bytes, size_t size) {
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  char *to;
  size_t n;
  if (!fmm_reserve(text, size / 3 * 4 + 8)) return;
  to = text->bytes + text->size;
  for (n = 0; n + 2 < size; n += 3) {
    uint32_t three = (uint32_t)bytes[n] << 16 | (uint32_t)bytes[n + 1] << 8 | bytes[n + 2];
    *to++ = letters[three >> 18];
    *to++ = letters[three >> 12 & 63];
    *to++ = letters[three >> 6 & 63];
    *to++ = letters[three & 63];
  }
  if (n < size) {
    uint32_t rest = (uint32_t)bytes[n] << 16 | (n + 1 < size ? (uint32_t)bytes[n + 1] << 8 : 0);
    *to++ = letters[rest >> 18];
    *to++ = letters[rest >> 12 & 63];
    *to++ = n + 1 < size ? letters[rest >> 6 & 63] : '=';
    *to++ = '=';
  }
  text->size = (size_t)(to - text->bytes);
}

static unsigned char *fmm_low_first(unsigned char *to, int64_t value) {
  uint64_t bits = (uint64_t)value;
  int n;
  for (n = 0; n < 8; n++) to[n] = (unsigned char)(bits >> 8 * n);
  return to + 8;
}

static double fmm_as_double(int64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void fmm_real(fmm_text *text, double value) {
  char digits[40];
  if (isnan(value)) {
    fmm_say(text, "\"NaN\"");
  } else if (isinf(value)) {
    fmm_say(text, value > 0 ? "\"Infinity\"" : "\"-Infinity\"");
  } else {
    char *at;
    snprintf(digits, sizeof digits, "%.17g", value);
    for (at = digits; *at; at++)
      if (*at == ',') *at = '.'; /* as some locales write it */
    fmm_say(text, digits);
  }
}

enum { FMM_CALLS, FMM_STARTS, FMM_REALS, FMM_WAITS, FMM_BYTES, FMM_VERSIONS, FMM_ITERATIONS };

static int64_t fmm_value(const fmm_record *record, int what) {
  switch (what) {
    case FMM_REALS: return record->end;
    case FMM_WAITS:
    case FMM_ITERATIONS: return record->wait;
    case FMM_BYTES: return record->bytes;
    case FMM_VERSIONS: return record->version;
    default: return record->start;
  }
}

/* One column of the records of a name, from the first on: as numbers where they are few, else as base64. */
static void fmm_column(fmm_text *text, const fmm_record *ring, int32_t first, uint32_t count, int what) {
  unsigned char *to = fmm_scratch;
  int32_t n;
  if (count > FMM_FEW) {
    for (n = first; n >= 0; n = fmm_next[n]) {
      to = fmm_low_first(to, fmm_value(&ring[n], what));
      if (what == FMM_CALLS) to = fmm_low_first(to, ring[n].end);
    }
    if (!fmm_say(text, "\"")) return;
    fmm_base64(text, fmm_scratch, (size_t)(to - fmm_scratch));
    fmm_say(text, "\"");
    return;
  }
  fmm_say(text, "[");
  for (n = first; n >= 0; n = fmm_next[n]) {
    if (!fmm_reserve(text, 64)) return;
    if (what == FMM_REALS) {
      fmm_real(text, fmm_as_double(ring[n].end));
    } else {
      fmm_digits(text, fmm_value(&ring[n], what));
      if (what == FMM_CALLS) {
        fmm_add(text, ", ", 2);
        fmm_digits(text, ring[n].end - ring[n].start);
      }
    }
    if (fmm_next[n] >= 0) fmm_add(text, ", ", 2);
  }
  fmm_say(text, "]");
}

static void fmm_line_end(fmm_text *text, const fmm_name *name, int32_t thread) {
  if (name->about) fmm_say(text, name->about);
  if (thread) {
    fmm_say(text, ", \"thread\": ");
    fmm_number(text, thread);
  }
  fmm_say(text, fmm_tail);
}

static int fmm_knows_bytes(const fmm_record *ring, int32_t first) {
  for (; first >= 0; first = fmm_next[first])
    if (ring[first].bytes >= 0) return 1;
  return 0;
}

static void fmm_tell(fmm_text *text, const fmm_thread *thread, const fmm_name *name, uint32_t count) {
  const fmm_record *ring = thread->ring;
  int32_t first = name->first;
  if (name->kind == FMM_EVENT) {
    for (; first >= 0; first = fmm_next[first]) {
      fmm_say(text, name->head);
      fmm_number(text, ring[first].start);
      fmm_line_end(text, name, 0);
    }
    return;
  }
  fmm_say(text, name->head);
  fmm_column(text, ring, first, count, name->kind == FMM_COUNTER ? FMM_STARTS : FMM_CALLS);
  if (name->kind == FMM_COUNTER) {
    fmm_say(text, ", \"is\": ");
    fmm_column(text, ring, first, count, FMM_REALS);
  } else if (name->kind == FMM_PHASE) {
    fmm_say(text, ", \"n\": ");
    fmm_column(text, ring, first, count, FMM_ITERATIONS);
  } else if (name->kind == FMM_EXCHANGE) {
    fmm_say(text, ", \"bytes\": ");
    fmm_column(text, ring, first, count, FMM_BYTES);
    fmm_say(text, ", \"version\": ");
    fmm_column(text, ring, first, count, FMM_VERSIONS);
    fmm_say(text, ", \"wait\": ");
    fmm_column(text, ring, first, count, FMM_WAITS);
  } else if (fmm_knows_bytes(ring, first)) {
    fmm_say(text, count > FMM_FEW ? ", \"each\": {\"bytes\": {\"int64\": " : ", \"each\": {\"bytes\": ");
    fmm_column(text, ring, first, count, FMM_BYTES);
    fmm_say(text, count > FMM_FEW ? "}}" : "}");
  }
  fmm_line_end(text, name, thread->number);
}

/* Reserved before, so that a line is whole or not there at all. */
static int fmm_room_for(fmm_text *text, const fmm_name *name, size_t records) {
  size_t words = strlen(name->head) + (name->about ? strlen(name->about) : 0) + 256;
  return text->size < FMM_HELD && fmm_reserve(text, records * 160 + words * (name->kind == FMM_EVENT ? records : 1));
}

static void fmm_empty(fmm_thread *thread) {
  uint32_t head = __atomic_load_n(&thread->head, __ATOMIC_ACQUIRE), tail = thread->tail;
  int32_t touched = 0, n;
  if (head == tail) return;
  for (; tail != head; tail++) {
    int32_t place = (int32_t)(tail & (FMM_RING - 1));
    int32_t index = thread->ring[place].handle & 0xFFFFFF;
    fmm_name *name = fmm_by_index[index];
    fmm_next[place] = -1;
    if (name->first < 0) {
      name->first = place;
      fmm_touched[touched++] = index;
    } else {
      fmm_next[name->last] = place;
    }
    name->last = place;
  }
  for (n = 0; n < touched; n++) {
    fmm_name *name = fmm_by_index[fmm_touched[n]];
    uint32_t count = 0;
    int32_t place;
    for (place = name->first; place >= 0; place = fmm_next[place]) count++;
    if (fmm_room_for(&fmm_lines, name, count))
      fmm_tell(&fmm_lines, thread, name, count);
    else
      fmm_lost_records += count;
    name->first = -1;
  }
  __atomic_store_n(&thread->tail, head, __ATOMIC_RELEASE);
}

static void fmm_forget(fmm_thread *thread) {
  uint32_t n;
  for (n = 0; n < thread->slots_count; n++) free(thread->slots[n].open);
  free(thread->slots);
  free(thread->ring);
  free(thread);
}

static void fmm_empty_all(void) {
  fmm_thread **at = &fmm_threads;
  while (*at) {
    fmm_thread *thread = *at;
    int ended = __atomic_load_n(&thread->ended, __ATOMIC_ACQUIRE); /* asked first: after its end it adds nothing */
    fmm_empty(thread);
    if (ended) {
      *at = thread->next;
      fmm_forget(thread);
    } else {
      at = &thread->next;
    }
  }
}

/* ---- the file; fmm_file is held ---- */

static void fmm_failed(int error) {
  fmm_failures++;
  fmm_untold++;
  snprintf(fmm_reason, sizeof fmm_reason, "%s", error == ENOENT ? "its folder no longer exists" : strerror(error));
  if (fmm_failures == 1)
    fprintf(stderr, "fairmile: cannot write %s: %s; the program continues and keeps its records for now\n", fmm_path,
            fmm_reason);
}

/* Let go of the log; the number may be another file's by now. */
static void fmm_close_log(void) {
  struct stat found;
  if (fmm_descriptor >= 0 && fstat(fmm_descriptor, &found) == 0 && found.st_dev == fmm_device &&
      found.st_ino == fmm_inode)
    close(fmm_descriptor);
  fmm_descriptor = -1;
  fmm_announced = 0;
}

/* Open the log unless it is; tell whether its last line has no end. */
static int fmm_open_log(int *ragged) {
  struct stat found;
  char last = '\n';
  /* Somebody may have closed it, or removed the file. */
  if (fmm_descriptor >= 0 && (fstat(fmm_descriptor, &found) != 0 || found.st_dev != fmm_device ||
                              found.st_ino != fmm_inode || found.st_nlink == 0))
    fmm_close_log();
  if (fmm_descriptor < 0) {
    fmm_descriptor = open(fmm_path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fmm_descriptor < 0) return 0;
    if (fstat(fmm_descriptor, &found) != 0) return 0;
    fmm_device = found.st_dev;
    fmm_inode = found.st_ino;
  }
  *ragged = found.st_size > 0 && pread(fmm_descriptor, &last, 1, found.st_size - 1) == 1 && last != '\n';
  return 1;
}

static void fmm_read_small(const char *file, char *to, size_t room) {
  int descriptor = open(file, O_RDONLY | O_CLOEXEC);
  ssize_t size = descriptor < 0 ? 0 : read(descriptor, to, room - 1);
  if (descriptor >= 0) close(descriptor);
  to[size > 0 ? size : 0] = '\0';
}

static int64_t fmm_began(void) {
  char said[1024], *at;
  int field = 0;
  fmm_read_small("/proc/self/stat", said, sizeof said);
  at = strrchr(said, ')');
  if (!at) return 0;
  for (at++; *at && field < 20; at++)
    if (*at == ' ') field++;
  return strtoll(at, NULL, 10);
}

static const char *fmm_rank(void) {
  static const char *const variables[] = {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};
  size_t n;
  for (n = 0; n < sizeof variables / sizeof *variables; n++) {
    const char *text = getenv(variables[n]);
    if (text && *text && strspn(text, "0123456789") == strlen(text) && strlen(text) < 10) {
      while (text[0] == '0' && text[1]) text++;
      return text;
    }
  }
  return "null";
}

static void fmm_introduce(fmm_text *text) {
  struct utsname machine;
  char boot[64];
  fmm_read_small("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
  boot[strcspn(boot, " \r\n")] = '\0';
  fmm_say(text, "{\"writer\": {\"host\": ");
  fmm_quote(text, uname(&machine) == 0 ? machine.nodename : "", sizeof machine.nodename);
  fmm_say(text, ", \"rank\": ");
  fmm_say(text, fmm_rank());
  fmm_say(text, ", \"boot\": ");
  fmm_quote(text, boot, sizeof boot);
  fmm_say(text, ", \"wall_ns\": ");
  fmm_number(text, fmm_wall_ns);
  fmm_say(text, ", \"clock_ns\": ");
  fmm_number(text, fmm_clock_ns);
  fmm_say(text, ", \"began\": ");
  fmm_number(text, fmm_began());
  if (fmm_component_json) {
    fmm_say(text, ", \"component\": ");
    fmm_say(text, fmm_component_json);
  }
  fmm_say(text, "}");
  fmm_say(text, fmm_tail);
}

/* writev() without the signal by which the system ends a program whose files grow beyond their limit. */
static ssize_t fmm_append(const struct iovec *parts) {
  sigset_t limit, before, pending;
  ssize_t written;
  int error, was_pending, got;
  sigemptyset(&limit);
  sigaddset(&limit, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &limit, &before);
  was_pending = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
  do written = writev(fmm_descriptor, parts, 2);
  while (written < 0 && errno == EINTR);
  error = errno;
  if (written < 0 && error == EFBIG && !was_pending && sigpending(&pending) == 0 &&
      sigismember(&pending, SIGXFSZ) == 1)
    sigwait(&limit, &got); /* it is ours */
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  errno = error;
  return written;
}

/* Append whole lines; what the disk does not take stays, from the start of the line that was cut. */
static void fmm_write(fmm_text *start) {
  struct iovec parts[2];
  ssize_t written;
  size_t taken;
  parts[0].iov_base = start->bytes;
  parts[0].iov_len = start->size;
  parts[1].iov_base = fmm_held.bytes;
  parts[1].iov_len = fmm_held.size;
  written = fmm_append(parts);
  if (written < 0) {
    fmm_failed(errno);
    return;
  }
  if ((size_t)written < start->size + fmm_held.size) fmm_failed(ENOSPC);
  if ((size_t)written < start->size) return;
  fmm_announced = 1;
  taken = (size_t)written - start->size;
  if (taken < fmm_held.size) {
    while (taken && fmm_held.bytes[taken - 1] != '\n') taken--;
    memmove(fmm_held.bytes, fmm_held.bytes + taken, fmm_held.size - taken);
    fmm_held.size -= taken;
  } else {
    fmm_held.size = 0;
    fmm_untold = 0;
    if (fmm_held.room > 4 * FMM_UNWRITTEN) fmm_free(&fmm_held);
  }
}

static void fmm_flush_held(void) {
  fmm_text start = {NULL, 0, 0}, swap;
  int ragged = 0;
  pthread_mutex_lock(&fmm_lists);
  fmm_empty_all();
  if (fmm_held.size == 0) {
    swap = fmm_held;
    fmm_held = fmm_lines;
    fmm_lines = swap;
  } else if (fmm_held.size + fmm_lines.size <= FMM_HELD && fmm_add(&fmm_held, fmm_lines.bytes, fmm_lines.size)) {
    fmm_lines.size = 0;
  } /* else they wait, until fmm_room_for() takes no more */
  if (fmm_held.size) {
    if (fmm_untold) {
      fmm_say(&start, "{\"event\": \"meter.write_failed\", \"at\": ");
      fmm_number(&start, fmm_now());
      fmm_say(&start, ", \"with\": {\"times\": ");
      fmm_number(&start, fmm_untold);
      fmm_say(&start, ", \"reason\": ");
      fmm_quote(&start, fmm_reason, sizeof fmm_reason);
      fmm_say(&start, ", \"records_lost\": ");
      fmm_number(&start, fmm_lost_records);
      fmm_say(&start, "}");
      fmm_say(&start, fmm_tail);
    }
  }
  pthread_mutex_unlock(&fmm_lists);
  if (fmm_held.size && fmm_path) {
    if (fmm_open_log(&ragged)) {
      fmm_text whole = {NULL, 0, 0};
      if (ragged) fmm_add(&whole, "\n", 1);
      if (!fmm_announced) {
        pthread_mutex_lock(&fmm_lists); /* the component */
        fmm_introduce(&whole);
        pthread_mutex_unlock(&fmm_lists);
      }
      fmm_add(&whole, start.bytes ? start.bytes : "", start.size);
      fmm_write(&whole);
      fmm_free(&whole);
    } else {
      fmm_failed(errno);
    }
  }
  fmm_free(&start);
}

static void *fmm_flush_often(void *nothing) {
  (void)nothing;
  pthread_mutex_lock(&fmm_pause);
  while (!fmm_flusher_stops) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    pthread_cond_timedwait(&fmm_stop, &fmm_pause, &until);
    if (fmm_flusher_stops) break;
    pthread_mutex_unlock(&fmm_pause);
    fairmile_flush();
    pthread_mutex_lock(&fmm_pause);
  }
  pthread_mutex_unlock(&fmm_pause);
  return NULL;
}

/* ---- begin and end ---- */

static void fmm_set(int state) { __atomic_store_n(&fmm_state, state, __ATOMIC_RELEASE); }

static int fmm_get(void) { return __atomic_load_n(&fmm_state, __ATOMIC_ACQUIRE); }

static void fmm_new_epoch(void) {
  fmm_wall_ns = fmm_clock(CLOCK_REALTIME);
  fmm_clock_ns = fmm_now();
  snprintf(fmm_tail, sizeof fmm_tail, ", \"p\": %ld}\n", (long)getpid());
  __atomic_add_fetch(&fmm_epoch, 1, __ATOMIC_RELEASE);
}

/* The log of another host lies beside that of the host that began the run, with its name in it. */
static char *fmm_place(void) {
  const char *file = getenv("FAIRMILE_EVENTS"), *shared_by = getenv("FAIRMILE_EVENTS_HOST");
  struct utsname machine;
  const char *host = uname(&machine) == 0 ? machine.nodename : "unknown", *base, *dot;
  fmm_text path = {NULL, 0, 0};
  size_t stem;
  if (!file || !*file) return NULL;
  if (*file != '/') {
    char *folder = getcwd(NULL, 0);
    if (folder) {
      fmm_say(&path, folder);
      fmm_say(&path, "/");
      free(folder);
    }
  }
  base = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
  dot = strrchr(base, '.');
  stem = dot && dot != base ? (size_t)(dot - file) : strlen(file);
  fmm_add(&path, file, stem);
  if (shared_by && *shared_by && strcmp(shared_by, host) != 0) {
    size_t start, n = 0;
    fmm_say(&path, ".");
    start = path.size;
    while (host[n]) {
      size_t run = strspn(host + n, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._");
      size_t other = strcspn(host + n + run, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._");
      fmm_add(&path, host + n, run);
      if (other && strspn(host + n + run, "-") >= other)
        fmm_add(&path, host + n + run, other); /* dashes alone stay as they are */
      else if (other)
        fmm_say(&path, "-");
      n += run + other;
    }
    while (path.size > start && strchr(".-", path.bytes[path.size - 1])) path.size--;
    if (path.size == start) fmm_say(&path, "unnamed");
  }
  fmm_say(&path, file + stem);
  return fmm_take(&path);
}

static void fmm_thread_ends(void *thread) {
  fmm_self = NULL;
  __atomic_store_n(&((fmm_thread *)thread)->ended, 1, __ATOMIC_RELEASE);
}

static void fmm_before_fork(void) {
  pthread_mutex_lock(&fmm_file);
  pthread_mutex_lock(&fmm_lists);
}

static void fmm_after_fork(void) {
  pthread_mutex_unlock(&fmm_lists);
  pthread_mutex_unlock(&fmm_file);
}

/* What the parent recorded is not the child's, and of its threads only one is here. */
static void fmm_in_child(void) {
  fmm_thread *thread = fmm_threads, *next;
  fmm_threads = NULL;
  for (; thread; thread = next) {
    next = thread->next;
    if (thread == fmm_self) {
      thread->next = NULL;
      thread->head = thread->tail = 0;
      thread->number = 0;
      fmm_threads = thread;
    } else {
      fmm_forget(thread);
    }
  }
  fmm_threads_count = 0;
  fmm_lines.size = fmm_held.size = 0;
  fmm_announced = 0;
  fmm_failures = fmm_untold = fmm_lost_records = fmm_lost_names = fmm_unmatched = 0;
  fmm_flusher_runs = 0;
  fmm_new_epoch();
  if (fmm_state == FMM_ON) fmm_state = FMM_IDLE;
  pthread_mutex_init(&fmm_pause, NULL);
  pthread_cond_init(&fmm_stop, NULL);
  fmm_after_fork();
}

/* Also when a library that holds this code is unloaded: a thread that ends later must not come back to it. */
static void fmm_at_exit(void) {
  fairmile_finalise();
  pthread_key_delete(fmm_key);
  fmm_registered = -1;
}

static int fmm_begin(void) {
  int state;
  pthread_mutex_lock(&fmm_lists);
  if (fmm_state == FMM_UNKNOWN) {
    const char *component = getenv("FAIRMILE_COMPONENT");
    fmm_path = fmm_place();
    if (fmm_path && component && *component && !fmm_component_json) {
      fmm_text json = {NULL, 0, 0};
      fmm_quote(&json, component, FMM_LONGEST_NAME);
      fmm_component_json = fmm_take(&json);
    }
    fmm_new_epoch();
    if (fmm_path && !fmm_registered) {
      fmm_registered = pthread_key_create(&fmm_key, fmm_thread_ends) == 0;
      pthread_atfork(fmm_before_fork, fmm_after_fork, fmm_in_child);
      atexit(fmm_at_exit);
    }
    fmm_set(fmm_path && fmm_registered > 0 ? FMM_IDLE : FMM_OFF);
  }
  state = fmm_state;
  pthread_mutex_unlock(&fmm_lists);
  return state;
}

/* See that somebody writes what is recorded from now on. */
static void fmm_wake(void) {
  sigset_t all, before;
  pthread_mutex_lock(&fmm_lists);
  if (fmm_state == FMM_IDLE) {
    if (!fmm_flusher_runs) {
      sigfillset(&all); /* the signals of a program are for its own threads */
      pthread_sigmask(SIG_BLOCK, &all, &before);
      fmm_flusher_stops = 0;
      /* Without a thread, lines are written when a ring is full and at the end. */
      fmm_flusher_runs = pthread_create(&fmm_flusher, NULL, fmm_flush_often, NULL) == 0;
      pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    fmm_set(FMM_ON);
  }
  pthread_mutex_unlock(&fmm_lists);
}

static int fmm_on(void) {
  int state = fmm_get();
  if (state == FMM_ON) return 1;
  if (state == FMM_UNKNOWN) state = fmm_begin();
  if (state == FMM_IDLE) fmm_wake();
  return state >= FMM_IDLE; /* another thread may have been faster */
}

static fmm_thread *fmm_new_thread(void) {
  fmm_thread *thread = (fmm_thread *)calloc(1, sizeof *thread);
  int is_main = 0;
  if (thread) thread->ring = (fmm_record *)malloc(FMM_RING * sizeof *thread->ring);
  if (!thread || !thread->ring || pthread_setspecific(fmm_key, thread) != 0) {
    if (thread) free(thread->ring);
    free(thread);
    return NULL;
  }
#ifdef __linux__
  is_main = (pid_t)syscall(SYS_gettid) == getpid();
#elif defined(__APPLE__)
  is_main = pthread_main_np();
#endif
  pthread_mutex_lock(&fmm_lists);
  thread->number = is_main ? 0 : ++fmm_threads_count;
  thread->next = fmm_threads;
  fmm_threads = thread;
  pthread_mutex_unlock(&fmm_lists);
  fmm_self = thread;
  return thread;
}

static fmm_thread *fmm_me(void) { return fmm_self ? fmm_self : fmm_new_thread(); }

/* ---- names ---- */

static uint64_t fmm_hash(int kind, const char *bytes, size_t size) {
  uint64_t hash = 1469598103934665603u ^ (uint64_t)kind;
  size_t n;
  for (n = 0; n < size; n++) hash = (hash ^ (unsigned char)bytes[n]) * 1099511628211u;
  return hash ^ hash >> 29;
}

static fmm_name *fmm_find(int kind, const char *raw, size_t size, uint64_t hash) {
  fmm_table *table = __atomic_load_n(&fmm_names, __ATOMIC_ACQUIRE);
  size_t at;
  if (!table) return NULL;
  for (at = hash & table->mask;; at = (at + 1) & table->mask) {
    fmm_name *name = __atomic_load_n(&table->entries[at], __ATOMIC_ACQUIRE);
    if (!name) return NULL;
    if (name->hash == hash && name->kind == kind && name->length == size && memcmp(name->raw, raw, size) == 0)
      return name;
  }
}

static void fmm_put(fmm_table *table, fmm_name *name) {
  size_t at = name->hash & table->mask;
  while (table->entries[at]) at = (at + 1) & table->mask;
  __atomic_store_n(&table->entries[at], name, __ATOMIC_RELEASE);
  table->count++;
}

static int fmm_grow_names(void) {
  fmm_table *old = fmm_names, *table;
  size_t n, mask = old ? old->mask * 2 + 1 : 255;
  if (old && old->count * 2 <= old->mask) return 1;
  table = (fmm_table *)calloc(1, sizeof *table);
  if (table) table->entries = (fmm_name **)calloc(mask + 1, sizeof *table->entries);
  if (!table || !table->entries) {
    free(table);
    return 0;
  }
  table->mask = mask;
  table->older = old;
  for (n = 0; old && n <= old->mask; n++)
    if (old->entries[n]) fmm_put(table, old->entries[n]);
  __atomic_store_n(&fmm_names, table, __ATOMIC_RELEASE);
  return 1;
}

static int fmm_grow_index(void) {
  int32_t room = fmm_index_room ? 2 * fmm_index_room : 256;
  fmm_name **index;
  if (fmm_index_count < fmm_index_room) return 1;
  index = (fmm_name **)realloc(fmm_by_index, (size_t)room * sizeof *index);
  if (!index) return 0;
  fmm_by_index = index;
  fmm_index_room = room;
  return 1;
}

/* Write what lines of this name begin with, and what stands behind their numbers; `raw` is terminated twice. */
static int fmm_word(fmm_name *name) {
  const char *key = name->raw, *peer = name->raw + strlen(name->raw) + 1, *how = NULL;
  fmm_text head = {NULL, 0, 0}, about = {NULL, 0, 0};
  int fine;
  if (name->kind == FMM_EXCHANGE) how = *key++ == 'p' ? "put" : "get";
  fine = fmm_say(&head, name->kind == FMM_COUNTER ? "{\"counter\": \"" : name->kind == FMM_EVENT ? "{\"event\": \""
                                                                                                  : "{\"spans\": \"");
  if (how) fine = fine && fmm_say(&head, how) && fmm_say(&head, " ");
  fine = fine && fmm_escape(&head, key, strlen(key)) && fmm_say(&head, "\", \"at\": ");
  name->head = fmm_take(&head);
  if (how) {
    fine = fine && fmm_say(&about, ", \"exchange\": {\"how\": \"") && fmm_say(&about, how) &&
           fmm_say(&about, "\", \"key\": ") && fmm_quote(&about, key, FMM_LONGEST_NAME) &&
           fmm_say(&about, ", \"peer\": ") && fmm_quote(&about, peer, FMM_LONGEST_NAME) && fmm_say(&about, "}");
    name->about = fmm_take(&about);
    fine = fine && name->about;
  }
  return fine && name->head;
}

static fmm_name *fmm_make(int kind, const char *raw, size_t size, uint64_t hash) {
  fmm_name *name = (fmm_name *)calloc(1, sizeof *name);
  if (!name) return NULL;
  name->raw = (char *)calloc(size + 2, 1);
  name->kind = kind;
  name->length = (uint32_t)size;
  name->hash = hash;
  name->first = -1;
  if (name->raw) memcpy(name->raw, raw, size);
  if (!name->raw || !fmm_word(name)) {
    free(name->raw);
    free(name->head);
    free(name->about);
    free(name);
    return NULL;
  }
  return name;
}

static int32_t fmm_intern(int kind, const char *raw, size_t size) {
  uint64_t hash = fmm_hash(kind, raw, size);
  fmm_name *name = fmm_find(kind, raw, size, hash);
  if (name) return name->handle;
  pthread_mutex_lock(&fmm_lists);
  name = fmm_find(kind, raw, size, hash);
  if (!name) {
    if (fmm_index_count < FMM_MOST_NAMES && fmm_grow_names() && fmm_grow_index())
      name = fmm_make(kind, raw, size, hash);
    if (name) {
      name->handle = kind << 24 | fmm_index_count;
      fmm_by_index[fmm_index_count] = name;
      __atomic_store_n(&fmm_index_count, fmm_index_count + 1, __ATOMIC_RELEASE);
      fmm_put(fmm_names, name);
    } else {
      fmm_lost_names++;
    }
  }
  pthread_mutex_unlock(&fmm_lists);
  return name ? name->handle : 0;
}

static int32_t fmm_named(int kind, const char *name) {
  if (!name) name = "";
  return fmm_intern(kind, name, strnlen(name, FMM_LONGEST_NAME));
}

/* ---- records ---- */

static void fmm_overflow(fmm_thread *me) {
  size_t unwritten;
  pthread_mutex_lock(&fmm_lists);
  fmm_empty(me);
  unwritten = fmm_lines.size;
  pthread_mutex_unlock(&fmm_lists);
  /* Who finds somebody writing goes on: a disk that is slow holds up one thread, not all. */
  if (unwritten >= FMM_UNWRITTEN && pthread_mutex_trylock(&fmm_file) == 0) {
    fmm_flush_held();
    pthread_mutex_unlock(&fmm_file);
  }
}

static fmm_record *fmm_next_record(fmm_thread *me, int32_t handle) {
  fmm_record *record;
  if (me->head - __atomic_load_n(&me->tail, __ATOMIC_ACQUIRE) == FMM_RING) fmm_overflow(me);
  record = &me->ring[me->head & (FMM_RING - 1)];
  record->handle = handle;
  return record;
}

static void fmm_done(fmm_thread *me) { __atomic_store_n(&me->head, me->head + 1, __ATOMIC_RELEASE); }

static fmm_slot *fmm_grow_slots(fmm_thread *me, uint32_t index) {
  uint32_t count = me->slots_count ? me->slots_count : 64;
  fmm_slot *slots;
  while (count <= index) count *= 2;
  slots = (fmm_slot *)realloc(me->slots, count * sizeof *slots);
  if (!slots) return NULL;
  memset(slots + me->slots_count, 0, (count - me->slots_count) * sizeof *slots);
  me->slots = slots;
  me->slots_count = count;
  return &slots[index];
}

static fmm_slot *fmm_slot_of(fmm_thread *me, int32_t handle) {
  uint32_t index = (uint32_t)handle & 0xFFFFFFu, epoch = __atomic_load_n(&fmm_epoch, __ATOMIC_RELAXED);
  fmm_slot *slot = index < me->slots_count ? &me->slots[index] : fmm_grow_slots(me, index);
  if (slot && slot->epoch != epoch) {
    slot->epoch = epoch;
    slot->depth = 0;
  }
  return slot;
}

static int fmm_is(int32_t handle, int kind) {
  return handle >> 24 == kind && (handle & 0xFFFFFF) < __atomic_load_n(&fmm_index_count, __ATOMIC_RELAXED);
}

static void fmm_start(int32_t handle, int64_t more) {
  fmm_thread *me = fmm_me();
  fmm_slot *slot = me ? fmm_slot_of(me, handle) : NULL;
  if (!slot) return;
  if (slot->depth == slot->room) {
    uint32_t room = slot->room ? 2 * slot->room : 4;
    fmm_open *open = room > FMM_DEEPEST ? NULL : (fmm_open *)realloc(slot->open, room * sizeof *open);
    if (!open) return;
    slot->open = open;
    slot->room = room;
  }
  slot->open[slot->depth].more = more;
  slot->open[slot->depth++].start = fmm_now();
}

/* The last start of this thread, or NULL where there is none. */
static fmm_open *fmm_last(fmm_thread *me, int32_t handle) {
  fmm_slot *slot = me ? fmm_slot_of(me, handle) : NULL;
  if (!slot || !slot->depth) {
    __atomic_add_fetch(&fmm_unmatched, 1, __ATOMIC_RELAXED);
    return NULL;
  }
  return &slot->open[slot->depth - 1];
}

/* A call that moved so many bytes, -1 where nobody knows. */
static void fmm_stop_timer(int32_t timer, int64_t bytes) {
  int64_t end = fmm_now();
  fmm_thread *me = fmm_me();
  fmm_open *open = fmm_last(me, timer);
  fmm_record *record;
  if (!open) return;
  me->slots[timer & 0xFFFFFF].depth--;
  record = fmm_next_record(me, timer);
  record->start = open->start;
  record->end = end;
  record->bytes = bytes;
  fmm_done(me);
}

/* ---- what a program calls ---- */

void fairmile_initialise(void) {
  int state = fmm_get();
  if (state == FMM_OFF) {
    pthread_mutex_lock(&fmm_lists);
    if (fmm_state == FMM_OFF) {
      free(fmm_path);
      fmm_path = NULL;
      fmm_set(FMM_UNKNOWN);
    }
    pthread_mutex_unlock(&fmm_lists);
  }
  fmm_on();
}

int fairmile_recording(void) { return fmm_on(); }

void fairmile_pause(void) {
  if (!fmm_on()) return;
  pthread_mutex_lock(&fmm_lists);
  __atomic_add_fetch(&fmm_epoch, 1, __ATOMIC_RELEASE);
  if (fmm_state == FMM_ON) fmm_set(FMM_PAUSED);
  pthread_mutex_unlock(&fmm_lists);
}

void fairmile_resume(void) {
  pthread_mutex_lock(&fmm_lists);
  if (fmm_state == FMM_PAUSED) fmm_set(FMM_IDLE);
  pthread_mutex_unlock(&fmm_lists);
  fmm_on();
}

void fairmile_flush(void) {
  if (fmm_get() < FMM_PAUSED) return;
  pthread_mutex_lock(&fmm_file);
  fmm_flush_held();
  pthread_mutex_unlock(&fmm_file);
}

static void fmm_add_line(const char *start, const char *name, const char *between, const char *value,
                         const char *end) {
  fmm_text line = {NULL, 0, 0};
  int fine = fmm_say(&line, start) && fmm_quote(&line, name, FMM_LONGEST_NAME) && fmm_say(&line, between) &&
             (!value || fmm_quote(&line, value, FMM_LONGEST_VALUE)) && fmm_say(&line, end);
  pthread_mutex_lock(&fmm_lists);
  if (!fine || !fmm_say(&line, fmm_tail) || fmm_lines.size + line.size > FMM_HELD ||
      !fmm_add(&fmm_lines, line.bytes, line.size))
    fmm_lost_records++;
  pthread_mutex_unlock(&fmm_lists);
  fmm_free(&line);
}

void fairmile_finalise(void) {
  int runs;
  if (fmm_get() < FMM_PAUSED) return;
  pthread_mutex_lock(&fmm_lists);
  runs = fmm_flusher_runs;
  fmm_flusher_runs = 0;
  pthread_mutex_unlock(&fmm_lists);
  if (runs) {
    pthread_mutex_lock(&fmm_pause);
    fmm_flusher_stops = 1;
    pthread_cond_signal(&fmm_stop);
    pthread_mutex_unlock(&fmm_pause);
    pthread_join(fmm_flusher, NULL);
  }
  if (fmm_unmatched || fmm_lost_names || fmm_lost_records) {
    char told[160];
    snprintf(told, sizeof told,
             ", \"with\": {\"stops_without_start\": %lld, \"names_lost\": %lld, \"records_lost\": %lld}",
             (long long)fmm_unmatched, (long long)fmm_lost_names, (long long)fmm_lost_records);
    char at[40];
    snprintf(at, sizeof at, ", \"at\": %lld", (long long)fmm_now());
    fmm_add_line("{\"event\": ", "meter.lost", at, NULL, told);
    fmm_unmatched = fmm_lost_names = fmm_lost_records = 0;
  }
  fairmile_flush();
  pthread_mutex_lock(&fmm_file);
  pthread_mutex_lock(&fmm_lists);
  __atomic_add_fetch(&fmm_epoch, 1, __ATOMIC_RELEASE);
  fmm_set(FMM_OFF);
  fmm_close_log();
  pthread_mutex_unlock(&fmm_lists);
  pthread_mutex_unlock(&fmm_file);
}

void fairmile_component(const char *name) {
  fmm_text json = {NULL, 0, 0};
  if (!fmm_on() || !fmm_quote(&json, name, FMM_LONGEST_NAME)) {
    fmm_free(&json);
    return;
  }
  pthread_mutex_lock(&fmm_lists);
  free(fmm_component_json);
  fmm_component_json = fmm_take(&json);
  pthread_mutex_unlock(&fmm_lists);
  fmm_add_line("{\"component\": ", name, "", NULL, "");
}

void fairmile_metadata(const char *name, const char *value) {
  if (fmm_on()) fmm_add_line("{\"about\": {", name, ": ", value ? value : "", "}");
}

void fairmile_register_thread(const char *name) {
  char number[40];
  fmm_thread *me = fmm_on() ? fmm_me() : NULL;
  if (!me) return;
  snprintf(number, sizeof number, ", \"thread\": %d", (int)me->number);
  fmm_add_line("{\"named\": ", name, "", NULL, number);
}

int32_t fairmile_timer(const char *name) { return fmm_on() ? fmm_named(FMM_TIMER, name) : 0; }

void fairmile_start(int32_t timer) {
  if (fmm_is(timer, FMM_TIMER) && fmm_on()) fmm_start(timer, 0);
}

void fairmile_stop(int32_t timer) {
  if (fmm_is(timer, FMM_TIMER) && fmm_on()) fmm_stop_timer(timer, -1);
}

void fairmile_start_string(const char *name) {
  if (fmm_on()) fairmile_start(fmm_named(FMM_TIMER, name));
}

void fairmile_stop_string(const char *name) {
  if (fmm_on()) fairmile_stop(fmm_named(FMM_TIMER, name));
}

void fairmile_phase_start(const char *prefix, int64_t iteration) {
  int32_t phase = fmm_on() ? fmm_named(FMM_PHASE, prefix) : 0;
  if (phase) fmm_start(phase, iteration);
}

void fairmile_phase_stop(const char *prefix, int64_t iteration) {
  int on = fmm_on();
  int64_t end = on ? fmm_now() : 0;
  int32_t phase = on ? fmm_named(FMM_PHASE, prefix) : 0;
  fmm_thread *me = phase ? fmm_me() : NULL;
  fmm_open *open = phase ? fmm_last(me, phase) : NULL;
  fmm_slot *slot;
  uint32_t at;
  int64_t start;
  fmm_record *record;
  if (!open) return;
  slot = &me->slots[phase & 0xFFFFFF];
  for (at = slot->depth; at && slot->open[at - 1].more != iteration; at--) continue;
  if (!at) {
    __atomic_add_fetch(&fmm_unmatched, 1, __ATOMIC_RELAXED);
    return;
  }
  start = slot->open[at - 1].start;
  memmove(&slot->open[at - 1], &slot->open[at], (slot->depth - at) * sizeof *slot->open);
  slot->depth--;
  record = fmm_next_record(me, phase);
  record->start = start;
  record->end = end;
  record->wait = iteration;
  fmm_done(me);
}

int32_t fairmile_counter(const char *name) { return fmm_on() ? fmm_named(FMM_COUNTER, name) : 0; }

void fairmile_sample(int32_t counter, double value) {
  fmm_thread *me;
  fmm_record *record;
  if (!fmm_is(counter, FMM_COUNTER) || !fmm_on() || !(me = fmm_me())) return;
  record = fmm_next_record(me, counter);
  record->start = fmm_now();
  memcpy(&record->end, &value, sizeof value);
  fmm_done(me);
}

void fairmile_event(const char *name) {
  int32_t event = fmm_on() ? fmm_named(FMM_EVENT, name) : 0;
  fmm_thread *me = event ? fmm_me() : NULL;
  fmm_record *record;
  if (!me) return;
  record = fmm_next_record(me, event);
  record->start = fmm_now();
  fmm_done(me);
}

int32_t fairmile_exchange(int how, const char *key, const char *peer) {
  char small[512], *raw = small;
  size_t key_size, peer_size;
  int32_t handle;
  if (!fmm_on()) return 0;
  if (!key) key = "";
  if (!peer) peer = "";
  key_size = strnlen(key, FMM_LONGEST_NAME);
  peer_size = strnlen(peer, FMM_LONGEST_NAME);
  if (key_size + peer_size + 2 > sizeof small) raw = (char *)malloc(key_size + peer_size + 2);
  if (!raw) return 0;
  raw[0] = how == FAIRMILE_PUT ? 'p' : 'g';
  memcpy(raw + 1, key, key_size);
  raw[key_size + 1] = '\0';
  memcpy(raw + key_size + 2, peer, peer_size);
  handle = fmm_intern(FMM_EXCHANGE, raw, key_size + peer_size + 2);
  if (raw != small) free(raw);
  return handle;
}

void fairmile_exchange_begin(int32_t exchange) {
  if (fmm_is(exchange, FMM_EXCHANGE) && fmm_on()) fmm_start(exchange, -1);
}

void fairmile_exchange_ready(int32_t exchange) {
  fmm_open *open;
  if (!fmm_is(exchange, FMM_EXCHANGE) || !fmm_on()) return;
  open = fmm_last(fmm_me(), exchange);
  if (open) open->more = fmm_now() - open->start;
}

void fairmile_exchange_end(int32_t exchange, int64_t version, int64_t bytes) {
  int64_t end;
  fmm_thread *me;
  fmm_open *open;
  fmm_record *record;
  if (!fmm_is(exchange, FMM_EXCHANGE) || !fmm_on()) return;
  end = fmm_now();
  me = fmm_me();
  open = fmm_last(me, exchange);
  if (!open) return;
  me->slots[exchange & 0xFFFFFF].depth--;
  record = fmm_next_record(me, exchange);
  record->start = open->start;
  record->end = end;
  record->wait = open->more;
  record->version = version;
  record->bytes = bytes;
  fmm_done(me);
}

#ifdef __cplusplus
}
#endif

#endif /* FAIRMILE_METER_IMPLEMENTATION */
