/* children.h - threads and processes that this process starts. */
#ifndef REPROKIT_IDENTITY_CHILDREN_H
#define REPROKIT_IDENTITY_CHILDREN_H

void rk_children_start(void);

#endif
