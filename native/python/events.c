/* events.c - what each event of a training costs: telling it to its listeners, and the gates before the agent's
 * wrappers of a framework's functions. */
#include "python/step.h"

#include <structmember.h>

/* ---- telling --------------------------------------------------------------------------------------------------- */

/* Hands an exception of a handler to failed(callback, error, handler); false if an exception is set. */
static bool report_failure(PyObject *failed, PyObject *callback, PyObject *handler) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
    PyObject *class, *error, *traceback;
    PyErr_Fetch(&class, &error, &traceback);
    PyErr_NormalizeException(&class, &error, &traceback);
    if (traceback) PyException_SetTraceback(error, traceback);
    PyObject *result = PyObject_CallFunctionObjArgs(failed, callback, error, handler, NULL);
    Py_XDECREF(class);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    Py_XDECREF(result);
    return result;
}

PyObject *rkp_tell(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *skip, *failed, *handlers, *event, *answer = Py_None;
    if (!PyArg_ParseTuple(arguments, "OOO!O", &skip, &failed, &PyTuple_Type, &handlers, &event)) return NULL;
    for (Py_ssize_t i = 0; i < PyTuple_Size(handlers); i++) {
        PyObject *pair = PyTuple_GetItem(handlers, i), *handler = PyTuple_GetItem(pair, 1);
        PyObject *result = handler ? PyObject_CallFunctionObjArgs(handler, event, NULL) : NULL;
        if (!result && !(handler && report_failure(failed, PyTuple_GetItem(pair, 0), handler))) return NULL;
        if (result == skip) answer = skip;
        Py_XDECREF(result);
    }
    Py_INCREF(answer);
    return answer;
}

/* ---- gates ----------------------------------------------------------------------------------------------------- */

#define GATES             32          /* gates of a process that tell nested calls from outermost ones */
#define METHOD_DESCRIPTOR (1UL << 17) /* Py_TPFLAGS_METHOD_DESCRIPTOR: calls of methods make no bound method */

static unsigned gate_count;
static _Thread_local bool is_within[GATES];
static PyObject *method_class;

struct gate {
    PyObject_HEAD;
    PyObject *original, *wrapper, *globals; /* the dictionary in which the framework says that it compiles, or None */
    PyObject *attributes;
    unsigned number;
    char is_open, hears_nested; /* whether somebody listens, also to calls within the wrapper */
};

static bool is_compiling(const struct gate *gate) {
    return gate->globals != Py_None && PyDict_GetItem(gate->globals, name_of_compiling) == Py_True;
}

static PyObject *call_gate(PyObject *self, PyObject *arguments, PyObject *keywords) {
    struct gate *gate = (struct gate *)self;
    bool *within = !gate->hears_nested && gate->number < GATES ? &is_within[gate->number] : NULL;
    if (!gate->is_open || (within && *within) || is_compiling(gate)) {
        if (gate->original == Py_None) Py_RETURN_NONE;
        return PyObject_Call(gate->original, arguments, keywords);
    }
    if (within) *within = true;
    PyObject *result = PyObject_Call(gate->wrapper, arguments, keywords);
    if (within) *within = false;
    return result;
}

static PyObject *bind_gate(PyObject *self, PyObject *object, PyObject *class) {
    (void)class;
    if (object && object != Py_None) return PyObject_CallFunctionObjArgs(method_class, self, object, NULL);
    Py_INCREF(self);
    return self;
}

static PyObject *get_attribute(PyObject *self, PyObject *name) {
    PyObject *attributes = ((struct gate *)self)->attributes;
    bool is_dictionary = !PyUnicode_CompareWithASCIIString(name, "__dict__");
    PyObject *value = is_dictionary ? attributes : PyDict_GetItem(attributes, name);
    if (!value) return PyObject_GenericGetAttr(self, name);
    Py_INCREF(value);
    return value;
}

static int set_attribute(PyObject *self, PyObject *name, PyObject *value) {
    if (!PyUnicode_CompareWithASCIIString(name, "is_open") || !PyUnicode_CompareWithASCIIString(name, "hears_nested"))
        return PyObject_GenericSetAttr(self, name, value);
    PyObject *attributes = ((struct gate *)self)->attributes;
    return value ? PyDict_SetItem(attributes, name, value) : PyDict_DelItem(attributes, name);
}

static void free_gate(PyObject *self) {
    struct gate *gate = (struct gate *)self;
    PyTypeObject *class = Py_TYPE(self);
    Py_XDECREF(gate->original);
    Py_XDECREF(gate->wrapper);
    Py_XDECREF(gate->globals);
    Py_XDECREF(gate->attributes);
    PyObject_Free(self);
    Py_DECREF(class);
}

static PyMemberDef gate_members[] = {
    {"is_open", T_BOOL, offsetof(struct gate, is_open), 0, NULL},
    {"hears_nested", T_BOOL, offsetof(struct gate, hears_nested), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot gate_slots[] = {
    {Py_tp_call, (void *)(uintptr_t)call_gate},
    {Py_tp_descr_get, (void *)(uintptr_t)bind_gate},
    {Py_tp_getattro, (void *)(uintptr_t)get_attribute},
    {Py_tp_setattro, (void *)(uintptr_t)set_attribute},
    {Py_tp_dealloc, (void *)(uintptr_t)free_gate},
    {Py_tp_members, gate_members},
    {0, NULL},
};

static PyType_Spec gate_spec = {"reprokit_step.gate", sizeof(struct gate), 0, Py_TPFLAGS_DEFAULT | METHOD_DESCRIPTOR,
                                gate_slots};

static PyTypeObject *gate_class(void) {
    static PyObject *class;
    if (class) return (PyTypeObject *)class;
    PyObject *types = PyImport_ImportModule("types");
    if (types) method_class = PyObject_GetAttrString(types, "MethodType");
    Py_XDECREF(types);
    if (method_class) class = PyType_FromSpec(&gate_spec);
    return (PyTypeObject *)class;
}

PyObject *rkp_gate(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *original, *wrapper, *globals;
    if (!PyArg_ParseTuple(arguments, "OOO", &original, &wrapper, &globals)) return NULL;
    PyTypeObject *class = gate_class();
    PyObject *attributes = class ? PyDict_New() : NULL;
    struct gate *gate = attributes ? (struct gate *)PyType_GenericAlloc(class, 0) : NULL;
    if (!gate) {
        Py_XDECREF(attributes);
        return NULL;
    }
    Py_INCREF(original);
    Py_INCREF(wrapper);
    Py_INCREF(globals);
    gate->original = original, gate->wrapper = wrapper, gate->globals = globals, gate->attributes = attributes;
    gate->number = gate_count < GATES ? gate_count++ : GATES;
    gate->is_open = gate->hears_nested = true;
    return (PyObject *)gate;
}
