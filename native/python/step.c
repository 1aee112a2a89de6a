/* step.c - what each step of a training asks of tensors and of random generators, without an interpreter's loop.
 *
 * An extension module in CPython's stable ABI of 3.7 (PEP 384), for whatever interpreter the training has. A step
 * finds nothing of ours in the processor's caches: what counts is how much code and memory it has to look at. */
#define Py_LIMITED_API 0x03070000
#include <Python.h>
#include <string.h>

#include "../trail/trail.h"

static PyObject *name_of_grad, *name_of_params, *name_of_is_cpu, *name_of_is_contiguous, *name_of_nbytes,
    *name_of_dtype, *name_of_data_ptr, *name_of_random, *name_of_inst, *name_of_gauss_next, *name_of_mtrand,
    *name_of_rand, *name_of_bit_generator;

static const struct {
    PyObject **at;
    const char *text;
} names[] = {
    {&name_of_grad, "grad"},
    {&name_of_params, "params"},
    {&name_of_is_cpu, "is_cpu"},
    {&name_of_is_contiguous, "is_contiguous"},
    {&name_of_nbytes, "nbytes"},
    {&name_of_dtype, "dtype"},
    {&name_of_data_ptr, "data_ptr"},
    {&name_of_random, "random"},
    {&name_of_inst, "_inst"},
    {&name_of_gauss_next, "gauss_next"},
    {&name_of_mtrand, "numpy.random.mtrand"},
    {&name_of_rand, "_rand"},
    {&name_of_bit_generator, "_bit_generator"},
};

/* ---- gradients ------------------------------------------------------------------------------------------------- */

enum answer { FAILED = -1, NOT_FINITE, FINITE, UNKNOWN };

/* Whether something is True; -1 where it could not be had. Takes the reference. */
static int is_true(PyObject *value) {
    if (!value) return -1;
    int found = value == Py_True;
    Py_DECREF(value);
    return found;
}

/* A whole number; an exception is set where it could not be had. Takes the reference. */
static uint64_t number(PyObject *value) {
    if (!value) return 0;
    uint64_t found = PyLong_AsUnsignedLongLong(value);
    Py_DECREF(value);
    return found;
}

/* Where the numbers of a tensor lie and what they are; UNKNOWN where they do not all lie here, in order. */
static enum answer describe(PyObject *tensor, PyObject *formats, uint64_t *address, struct rkt_numbers *numbers) {
    int is_here = is_true(PyObject_GetAttr(tensor, name_of_is_cpu));
    if (is_here > 0) is_here = is_true(PyObject_CallMethodObjArgs(tensor, name_of_is_contiguous, NULL));
    if (is_here <= 0) return is_here < 0 ? FAILED : UNKNOWN;
    numbers->bytes = number(PyObject_GetAttr(tensor, name_of_nbytes));
    PyObject *dtype = PyErr_Occurred() ? NULL : PyObject_GetAttr(tensor, name_of_dtype);
    if (!dtype) return FAILED;
    PyObject *format = PyDict_GetItem(formats, dtype);
    Py_DECREF(dtype);
    numbers->format = format ? PyLong_AsUnsignedLongLong(format) : RKT_OTHER;
    *address = number(PyObject_CallMethodObjArgs(tensor, name_of_data_ptr, NULL));
    return PyErr_Occurred() ? FAILED : FINITE;
}

static enum answer test(PyObject *tensor, PyObject *formats) {
    struct rkt_numbers numbers;
    uint64_t address, good;
    enum answer found = describe(tensor, formats, &address, &numbers);
    if (found != FINITE) return found;
    if (numbers.bytes <= RKT_SMALL) {
        good = reprokit_trail_finite(&address, &numbers, 1);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        good = reprokit_trail_finite(&address, &numbers, 1);
        Py_END_ALLOW_THREADS;
    }
    return good ? FINITE : NOT_FINITE;
}

static enum answer test_group(PyObject *parameters, PyObject *plain, PyObject *formats) {
    for (Py_ssize_t i = 0; i < PyList_Size(parameters); i++) {
        PyObject *gradient = PyObject_GetAttr(PyList_GetItem(parameters, i), name_of_grad);
        if (!gradient) return FAILED;
        enum answer found = FINITE;
        if (gradient != Py_None) found = (PyObject *)Py_TYPE(gradient) == plain ? test(gradient, formats) : UNKNOWN;
        Py_DECREF(gradient);
        if (found != FINITE) return found;
    }
    return FINITE;
}

static PyObject *finite_gradients(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *plain, *formats, *groups;
    if (!PyArg_UnpackTuple(arguments, "finite_gradients", 3, 3, &plain, &formats, &groups)) return NULL;
    if (!PyList_Check(groups)) Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < PyList_Size(groups); i++) {
        PyObject *group = PyList_GetItem(groups, i);
        PyObject *parameters = PyDict_Check(group) ? PyDict_GetItem(group, name_of_params) : NULL;
        if (!parameters || !PyList_Check(parameters)) Py_RETURN_NONE;
        Py_INCREF(parameters);
        enum answer found = test_group(parameters, plain, formats);
        Py_DECREF(parameters);
        if (found == FAILED) return NULL;
        if (found == UNKNOWN) Py_RETURN_NONE;
        if (found == NOT_FINITE) Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

/* ---- random generators ----------------------------------------------------------------------------------------- */

/* An attribute of what may not be there; else something else. */
static PyObject *attribute(PyObject *owner, PyObject *name, PyObject *otherwise) {
    PyObject *found = owner && owner != Py_None ? PyObject_GetAttr(owner, name) : NULL;
    if (found) return found;
    PyErr_Clear();
    Py_INCREF(otherwise);
    return otherwise;
}

static PyObject *keep_generators(PyObject *module, PyObject *known) {
    (void)module;
    PyObject *modules, *was_python, *was_numpy, *was_bits;
    unsigned long long stretches_at, count, room;
    if (!PyArg_ParseTuple(known, "OOOOKKK", &modules, &was_python, &was_numpy, &was_bits, &stretches_at, &count, &room))
        return NULL;
    PyObject *python = attribute(PyDict_GetItem(modules, name_of_random), name_of_inst, Py_None);
    PyObject *numpy = attribute(PyDict_GetItem(modules, name_of_mtrand), name_of_rand, Py_None);
    PyObject *bits = attribute(numpy, name_of_bit_generator, numpy), *result;
    if (python == was_python && numpy == was_numpy && bits == was_bits) {
        reprokit_trail_keep((const struct rkt_stretch *)(uintptr_t)stretches_at, count, (uint8_t *)(uintptr_t)room);
        result = attribute(python, name_of_gauss_next, Py_None);
    } else {
        result = Py_NotImplemented;
        Py_INCREF(result);
    }
    Py_DECREF(python);
    Py_DECREF(numpy);
    Py_DECREF(bits);
    return result;
}

/* ---- the module ------------------------------------------------------------------------------------------------ */

PyDoc_STRVAR(
    finite_gradients_text,
    "finite_gradients(plain, formats, param_groups)\n--\n\n"
    "Whether the gradients of all parameters are finite; None where one is not of the class `plain`, does not\n"
    "lie in this process' memory or is not contiguous. `formats` has the number (enum rkt_format) of each\n"
    "dtype whose numbers can be not finite.");
PyDoc_STRVAR(keep_generators_text,
             "keep_generators((modules, python, numpy, bits, stretches, count, room))\n--\n\n"
             "Copy the memory of random states, if the global generators are still these; NotImplemented where they\n"
             "are not. Otherwise it gives `gauss_next` of Python's.");

static PyMethodDef methods[] = {
    {"finite_gradients", finite_gradients, METH_VARARGS, finite_gradients_text},
    {"keep_generators", keep_generators, METH_O, keep_generators_text},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "reprokit_step", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_reprokit_step(void) {
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        *names[i].at = PyUnicode_InternFromString(names[i].text);
        if (!*names[i].at) return NULL;
    }
    return PyModule_Create(&definition);
}
