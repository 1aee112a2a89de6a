/* calls.c - reads what the log of operator calls needs at each call: the stack, and digests of values. */
#include <dlfcn.h>

#include "python/step.h"

#define MAX_FRAMES 200 /* MAX_DEPTH of reprokit/agent/pytorch/places.py */

/* Functions of CPython 3.11 and newer that are not in the stable ABI; NULL if absent. */
static PyObject *(*code_of)(PyObject *frame);
static PyObject *(*caller_of)(PyObject *frame);
static int (*instruction_of)(PyObject *frame);

void rkp_find_frame_functions(void) {
    *(void **)&code_of = dlsym(RTLD_DEFAULT, "PyFrame_GetCode");
    *(void **)&caller_of = dlsym(RTLD_DEFAULT, "PyFrame_GetBack");
    *(void **)&instruction_of = dlsym(RTLD_DEFAULT, "PyFrame_GetLasti");
}

/* The codes are not kept alive: whoever stores a key must do so. */
PyObject *rkp_stack_key(PyObject *module, PyObject *depth) {
    (void)module;
    uint64_t words[2 * MAX_FRAMES];
    Py_ssize_t skipped = PyLong_AsSsize_t(depth), count = 0;
    if (PyErr_Occurred()) return NULL;
    if (!code_of || !caller_of || !instruction_of) Py_RETURN_NONE;
    PyObject *frame = (PyObject *)PyEval_GetFrame();
    Py_XINCREF(frame);
    for (; frame && count < 2 * MAX_FRAMES; skipped--) {
        if (skipped <= 0) {
            PyObject *code = code_of(frame);
            words[count++] = (uint64_t)(uintptr_t)code;
            words[count++] = (uint64_t)instruction_of(frame);
            Py_DECREF(code);
        }
        PyObject *caller = caller_of(frame);
        Py_DECREF(frame);
        frame = caller;
    }
    Py_XDECREF(frame);
    return PyBytes_FromStringAndSize((const char *)words, count * (Py_ssize_t)sizeof(*words));
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static bool is_sequence(PyObject *value) { return PyList_CheckExact(value) || PyTuple_CheckExact(value); }

static bool is_atom(PyObject *value) {
    return value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
           PyUnicode_CheckExact(value);
}

static bool append(PyObject *list, PyObject *value) { return value && !PyList_Append(list, value); }

/* Sorts values into tensors and others, like _flat of reprokit/agent/operators/pytorch/log.py: for a sequence with
 * tensors, `others` gets a list with None in their place. False if a value is of another class of tensors, or an
 * exception is set. */
static bool sort_values(const struct classes *classes, PyObject *values, bool is_nested, PyObject *tensors,
                        PyObject *others) {
    bool is_sorted = true;
    Py_ssize_t count = PySequence_Size(values);
    for (Py_ssize_t i = 0; i < count && is_sorted; i++) {
        PyObject *value = PySequence_GetItem(values, i), *class = value ? (PyObject *)Py_TYPE(value) : NULL;
        if (class && (class == classes->plain || class == classes->parameter)) {
            is_sorted = append(tensors, value) && (!is_nested || append(others, Py_None));
        } else if (value && !is_nested && is_sequence(value)) {
            PyObject *rest = PyList_New(0);
            Py_ssize_t before = PyList_Size(tensors);
            is_sorted = rest && sort_values(classes, value, true, tensors, rest) &&
                        append(others, PyList_Size(tensors) == before ? value : rest);
            Py_XDECREF(rest);
        } else {
            is_sorted =
                value && (is_atom(value) || !PyObject_IsInstance(value, classes->plain)) && append(others, value);
        }
        Py_XDECREF(value);
    }
    return is_sorted && count >= 0;
}

/* Returns the digest of values that are no tensors: of their text, which tells 1, 1.0 and True apart. `texts` has the
 * digests of plain values' texts. */
static uint64_t digest_others(PyObject *texts, PyObject *compute, PyObject *others) {
    bool is_plain = true;
    for (Py_ssize_t i = 0; i < PyList_Size(others) && is_plain; i++) is_plain = is_atom(PyList_GetItem(others, i));
    PyObject *text = is_plain ? PyObject_Repr(others) : NULL;
    PyObject *digest = text ? PyDict_GetItem(texts, text) : NULL;
    Py_XINCREF(digest);
    Py_XDECREF(text);
    if (!digest && !PyErr_Occurred()) digest = PyObject_CallFunctionObjArgs(compute, others, NULL);
    return rkp_number(digest);
}

/* Returns tensors, keys of their dtypes and shapes, and the digest; None if the values cannot be read here. */
static PyObject *read_values(PyObject *context, PyObject *values, PyObject *tensors, PyObject *others, PyObject *keys) {
    struct classes classes;
    struct salts salts;
    PyObject *texts, *text_digest;
    uint64_t digest = 0;
    if (!PyArg_ParseTuple(context, "OOO!OO!O", &classes.plain, &classes.parameter, &PyDict_Type, &salts.cache,
                          &salts.compute, &PyDict_Type, &texts, &text_digest))
        return NULL;
    bool is_read = sort_values(&classes, values, false, tensors, others);
    if (is_read && PyList_Size(others)) digest = digest_others(texts, text_digest, others);
    is_read = is_read && !PyErr_Occurred() && rkp_fold_each(&classes, &salts, tensors, &digest, keys);
    if (PyErr_Occurred()) return NULL;
    if (!is_read) Py_RETURN_NONE;
    return Py_BuildValue("(ONK)", tensors, PyList_AsTuple(keys), (unsigned long long)digest);
}

PyObject *rkp_call_values(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *context, *values, *result = NULL;
    if (!PyArg_ParseTuple(arguments, "OO!", &context, &PyList_Type, &values)) return NULL;
    PyObject *tensors = PyList_New(0), *others = PyList_New(0), *keys = PyList_New(0);
    if (tensors && others && keys) result = read_values(context, values, tensors, others, keys);
    Py_XDECREF(tensors);
    Py_XDECREF(others);
    Py_XDECREF(keys);
    return result;
}
