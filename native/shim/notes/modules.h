/* modules.h - the modules of this process. */
#ifndef REPROKIT_NOTES_MODULES_H
#define REPROKIT_NOTES_MODULES_H

void rk_modules_start(void);
void rk_modules_before_fork(void);

#endif
