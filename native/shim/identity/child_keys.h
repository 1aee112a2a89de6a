/* child_keys.h - names children as the recording did. */
#ifndef REPROKIT_IDENTITY_CHILD_KEYS_H
#define REPROKIT_IDENTITY_CHILD_KEYS_H

#include "recorder/state.h"

/* file: NULL if the program is given by a descriptor. */
void rk_name_started(char *text, struct rk_thread *thread, struct rk_birth *birth, const char *file,
                     char *const arguments[]);
void rk_name_executed(char *text, const char *file, char *const arguments[]); /* replaces this process */
void rk_number_fork(struct rk_thread *thread);
void rk_name_forked(char *text, const struct rk_thread *thread);
void rk_forked(const struct rk_thread *thread); /* called in the child, which still has its parent's identity */

#endif
