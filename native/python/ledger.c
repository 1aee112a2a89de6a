/* ledger.c - the samples of a step, put where they wait to be written: the agent's ledger does it for each step. */
#include <string.h>

#include "step.h"

/* What the agent keeps of that place: its address, how often something was put there, and the room of its areas. */
struct waiting {
    uint64_t address, puts, entries, numbers;
};

/* The head of the place, and where its areas begin (docs/format.md). */
struct tail {
    uint64_t magic, first, entries, numbers, zeros[4];
    char areas[];
};

static bool put(struct waiting *waiting, const char *entries, uint64_t size, const char *numbers, uint64_t count) {
    struct tail *tail = (struct tail *)(uintptr_t)waiting->address;
    if (!tail || size > waiting->entries - tail->entries || count > waiting->numbers - tail->numbers) return false;
    memcpy(tail->areas + waiting->entries + tail->numbers, numbers, count);
    memcpy(tail->areas + tail->entries, entries, size);
    tail->numbers += count;
    __atomic_store_n(&tail->entries, tail->entries + size, __ATOMIC_RELEASE); /* from here on a reader sees it */
    waiting->puts++;
    return true;
}

/* Where another thread writes, nothing is put. */
PyObject *rkp_ledger_put(PyObject *module, PyObject *arguments) {
    (void)module;
    unsigned long long place;
    PyObject *guard, *entries, *numbers;
    if (!PyArg_ParseTuple(arguments, "KOSS", &place, &guard, &entries, &numbers)) return NULL;
    if (rkp_is_true(PyObject_CallMethodObjArgs(guard, name_of_locked, NULL))) {
        if (PyErr_Occurred()) return NULL;
        Py_RETURN_FALSE;
    }
    return PyBool_FromLong(put((struct waiting *)(uintptr_t)place, PyBytes_AsString(entries),
                               (uint64_t)PyBytes_Size(entries), PyBytes_AsString(numbers),
                               (uint64_t)PyBytes_Size(numbers)));
}

static bool fill(PyObject *indices, uint32_t *words) {
    for (Py_ssize_t i = 0; i < PyList_Size(indices); i++) {
        PyObject *index = PyList_GetItem(indices, i);
        unsigned long number = PyLong_Check(index) ? PyLong_AsUnsignedLong(index) : (unsigned long)-1;
        PyErr_Clear();
        if (number > UINT32_MAX) return false;
        words[i] = (uint32_t)number;
    }
    return true;
}

PyObject *rkp_words(PyObject *module, PyObject *indices) {
    (void)module;
    if (!PyList_Check(indices)) Py_RETURN_NONE;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, PyList_Size(indices) * (Py_ssize_t)sizeof(uint32_t));
    if (!bytes || fill(indices, (uint32_t *)(void *)PyBytes_AsString(bytes))) return bytes;
    Py_DECREF(bytes);
    Py_RETURN_NONE;
}
