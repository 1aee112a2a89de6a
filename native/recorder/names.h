/* names.h - what those who record names of files share. */
#ifndef REPROKIT_RECORDER_NAMES_H
#define REPROKIT_RECORDER_NAMES_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#define RK_MOMENT    32 /* bytes of a time stamp with its prefix */
#define RK_WRITTEN   "/written.paths"
#define RK_PAST_SHIM "/found/past-the-shim" /* is there if a program may write files unseen */

/* Buffers for one line. Too large for the stack: opens happen on thread and signal stacks of 8 to 16 KiB. */
struct rk_scratch {
    char path[PATH_MAX], from[PATH_MAX], parent[PATH_MAX];
    char line[4 * PATH_MAX + 8 * RK_MOMENT];
};

struct rk_scratch *rk_take_scratch(void); /* NULL if there is no memory */
void rk_give_scratch(struct rk_scratch *scratch);
bool rk_is_new(const char *line, size_t length); /* whether it is none of the last lines; remembers it */
bool rk_is_in_memory(const char *path);          /* whether a path lies in /dev/shm */
bool rk_is_program_file(const char *path);       /* whether it is no device, and no file of the kernel's or the run's */
/* Escapes a backslash as "\\" and a line feed as "\\n", so that each path is one line. */
size_t rk_escape(char *line, const char *path);
/* Appends "\\@", the monotonic time in nanoseconds and a line feed. The times order lines of all processes and lists.
 */
size_t rk_append_moment(char *line, size_t n);
/* Writes the absolute path of a descriptor and returns its length: 0 if it has none or was deleted, at least `size` if
 * it does not fit. */
size_t rk_name_of(int fd, char *path, size_t size);
/* Writes the absolute path of a directory entry, without following it if it is a symbolic link. */
bool rk_entry_name(int directory, const char *name, char path[PATH_MAX], char parent[PATH_MAX]);
/* Appends a line to a list: "/NAME" in the run directory. */
void rk_append_line(const char *list, const char *line, size_t length);
/* Records a line "FROM\\>TO" in written.paths, or "\\>TO" if there was no name before. */
void rk_record_new_name(int from_directory, const char *from, int to_directory, const char *to);

#endif
