/* trail.c - writes a step of the trail by one call from Python. */
#include <string.h>

#include "python/step.h"
#include "trail/digest.h"
#include "trail/trail.h"

#define MAX_AXES    16
#define MAX_TENSORS 8 /* maximum tensors of a batch that are folded one by one */

PyObject *rkp_changes(PyObject *module, PyObject *tensors) {
    (void)module;
    uint64_t changes = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(tensors); i++)
        changes += rkp_number(PyObject_GetAttr(PyList_GetItem(tensors, i), name_of_version));
    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(changes);
}

/* Adds the version counters of the parameters of a group; false if an exception is set. */
static bool add_changes(PyObject *group, uint64_t *changes) {
    PyObject *parameters = PyMapping_GetItemString(group, "params");
    for (Py_ssize_t i = 0; parameters && PyList_Check(parameters) && i < PyList_Size(parameters); i++)
        *changes += rkp_number(PyObject_GetAttr(PyList_GetItem(parameters, i), name_of_version));
    Py_XDECREF(parameters);
    return !PyErr_Occurred();
}

PyObject *rkp_note_changes(PyObject *module, PyObject *event) {
    (void)module;
    uint64_t changes = 0;
    PyObject *record = PyObject_GetAttrString(event, "optimizer");
    PyObject *groups = record ? PyObject_GetAttrString(record, "groups") : NULL, *number = NULL;
    bool is_read = groups && PyList_Check(groups);
    for (Py_ssize_t i = 0; is_read && i < PyList_Size(groups); i++)
        is_read = add_changes(PyList_GetItem(groups, i), &changes);
    if (is_read) number = PyLong_FromUnsignedLongLong(changes);
    if (number) is_read = !PyObject_SetAttrString(record, "change_count", number);
    Py_XDECREF(number);
    Py_XDECREF(groups);
    Py_XDECREF(record);
    if (PyErr_Occurred()) return NULL;
    return PyBool_FromLong(is_read);
}

/* Returns whether two lists have the same objects. */
PyObject *rkp_same(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *left, *right;
    if (!PyArg_ParseTuple(arguments, "O!O!", &PyList_Type, &left, &PyList_Type, &right)) return NULL;
    Py_ssize_t count = PyList_Size(left);
    bool is_same = count == PyList_Size(right);
    for (Py_ssize_t i = 0; i < count && is_same; i++) is_same = PyList_GetItem(left, i) == PyList_GetItem(right, i);
    return PyBool_FromLong(is_same);
}

/* Finds the bytes of a tensor; false if it is not contiguous in this process's memory. `shaped` gets dtype and shape if
 * the exchange describes it, else ndim is -1. */
static bool locate(const struct classes *classes, PyObject *tensor, struct rkt_stretch *at, struct dl_tensor *shaped) {
    PyObject *class = (PyObject *)Py_TYPE(tensor);
    if (class != classes->plain && class != classes->parameter) return false;
    if (classes->plain != rkp_exchanged) {
        shaped->ndim = -1;
        bool is_here = rkp_ask(tensor, &at->address, &at->size) == FINITE;
        PyErr_Clear();
        return is_here;
    }
    if (!rkp_describe(tensor, shaped) || shaped->device_type != DL_CPU) return false;
    at->address = (uint64_t)(uintptr_t)shaped->data + shaped->byte_offset;
    at->size = rkp_bytes_in_order(shaped);
    return at->size != UINT64_MAX;
}

/* ---- layouts --------------------------------------------------------------------------------------------------- */

/* Describes a tensor by words: dtype, number of axes, shape. Returns their count; 0 if its bytes are not all that it
 * is, or are not floating-point numbers of one of the two usual precisions, in order, in this process's memory. */
static size_t describe_layout(const struct classes *classes, PyObject *tensor, int64_t *words, struct rkt_array *at) {
    struct rkt_stretch stretch;
    struct dl_tensor shaped;
    if (!locate(classes, tensor, &stretch, &shaped) || shaped.ndim < 0 || shaped.ndim > MAX_AXES) return 0;
    if (shaped.code != DL_FLOAT || (shaped.bits != 32 && shaped.bits != 64) || shaped.lanes != 1) return 0;
    if (!stretch.size || rkp_is_negative(tensor)) return 0;
    *at = (struct rkt_array){stretch.address, stretch.size * 8 / shaped.bits, shaped.bits == 64};
    words[0] = shaped.bits;
    words[1] = shaped.ndim;
    memcpy(words + 2, shaped.shape, (size_t)shaped.ndim * sizeof(*words));
    return 2 + (size_t)shaped.ndim;
}

/* Returns words and places of tensors; NULL if one has no description, or an exception is set. */
static PyObject *describe_layouts(const struct classes *classes, PyObject *tensors, size_t count, int64_t *words,
                                  struct rkt_array *places) {
    size_t length = 0;
    for (size_t i = 0; i < count; i++) {
        PyObject *tensor = PyList_GetItem(tensors, (Py_ssize_t)i);
        Py_XINCREF(tensor); /* reading its attributes may run Python code */
        size_t size = tensor ? describe_layout(classes, tensor, words + length, places + i) : 0;
        Py_XDECREF(tensor);
        if (!size) return NULL;
        length += size;
    }
    PyObject *layouts = PyBytes_FromStringAndSize((const char *)words, (Py_ssize_t)(length * sizeof(*words)));
    PyObject *at = PyBytes_FromStringAndSize((const char *)places, (Py_ssize_t)(count * sizeof(*places)));
    PyObject *result = layouts && at ? PyTuple_Pack(2, layouts, at) : NULL;
    Py_XDECREF(layouts);
    Py_XDECREF(at);
    return result;
}

PyObject *rkp_layouts(PyObject *module, PyObject *arguments) {
    (void)module;
    struct classes classes;
    PyObject *tensors, *result = NULL;
    if (!PyArg_ParseTuple(arguments, "(OO)O!", &classes.plain, &classes.parameter, &PyList_Type, &tensors)) return NULL;
    size_t count = (size_t)PyList_Size(tensors);
    int64_t *words = PyMem_Malloc((count + 1) * (2 + MAX_AXES) * sizeof(*words));
    struct rkt_array *places = PyMem_Malloc((count + 1) * sizeof(*places));
    if (words && places) result = describe_layouts(&classes, tensors, count, words, places);
    PyMem_Free(words);
    PyMem_Free(places);
    if (result) return result;
    PyErr_Clear();
    Py_RETURN_NONE;
}

PyObject *rkp_reduce(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *arrays;
    unsigned int wanted;
    if (!PyArg_ParseTuple(arguments, "O!I", &PyBytes_Type, &arrays, &wanted)) return NULL;
    const struct rkt_array *array = (const struct rkt_array *)PyBytes_AsString(arrays);
    size_t count = (size_t)PyBytes_Size(arrays) / sizeof(*array), size = 2 * RKT_EACH * count;
    double *results = PyMem_Malloc((size + 1) * sizeof(*results));
    if (!results) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS;
    reprokit_trail_reduce(array, count, wanted, results);
    Py_END_ALLOW_THREADS;
    PyObject *list = PyList_New((Py_ssize_t)size);
    for (size_t i = 0; list && i < size; i++) {
        bool is_wanted = wanted >> i % (2 * RKT_EACH) & 1;
        PyObject *number = is_wanted ? PyFloat_FromDouble(results[i]) : Py_None;
        if (!is_wanted) Py_INCREF(number);
        if (!number || PyList_SetItem(list, (Py_ssize_t)i, number)) Py_CLEAR(list);
    }
    PyMem_Free(results);
    return list;
}

/* ---- batches and losses ---------------------------------------------------------------------------------------- */

/* Returns the cache key of dtype and shape, and of strides if the tensor is not contiguous; NULL if it has no shape. */
static PyObject *layout_key(PyObject *tensor, const struct dl_tensor *shaped, bool is_in_order) {
    int64_t words[1 + 2 * MAX_AXES] = {shaped->code | shaped->bits << 8 | (int64_t)shaped->lanes << 16};
    if (shaped->ndim >= 0) {
        size_t axes = (size_t)shaped->ndim, count = 1 + (is_in_order ? axes : 2 * axes);
        memcpy(words + 1, shaped->shape, axes * sizeof(*words));
        if (!is_in_order) memcpy(words + 1 + axes, shaped->strides, axes * sizeof(*words));
        return PyBytes_FromStringAndSize((const char *)words, (Py_ssize_t)(count * sizeof(*words)));
    }
    PyObject *dtype = PyObject_GetAttr(tensor, name_of_dtype);
    PyObject *shape = dtype ? PyObject_GetAttr(tensor, name_of_shape) : NULL;
    PyObject *key = shape ? PyTuple_Pack(2, dtype, shape) : NULL;
    if (!key) PyErr_Clear(); /* a nested tensor has no shape */
    Py_XDECREF(dtype);
    Py_XDECREF(shape);
    return key;
}

/* Finds the salt of a key; false if it has none, or an exception is set. Appends the key to `keys`, if that is a list.
 * Takes the reference. */
static bool find_salt(const struct salts *salts, PyObject *tensor, PyObject *key, uint64_t *salt, PyObject *keys) {
    PyObject *number = key ? PyDict_GetItem(salts->cache, key) : NULL;
    Py_XINCREF(number);
    if (key && !number) {
        number = PyObject_CallFunctionObjArgs(salts->compute, tensor, NULL);
        if (number && number != Py_None && PyDict_SetItem(salts->cache, key, number)) Py_CLEAR(number);
    }
    bool has_salt = number && number != Py_None && (!keys || !PyList_Append(keys, key));
    Py_XDECREF(key);
    if (has_salt) *salt = PyLong_AsUnsignedLongLong(number);
    Py_XDECREF(number);
    return has_salt;
}

/* A tensor's bytes and salt, and their digest: a call often gets the same tensor twice in a row. */
struct digested {
    struct rkt_stretch at;
    uint64_t salt, digest;
};

static void digest_bytes(struct digested *tensor) {
    const void *data = (const void *)(uintptr_t)tensor->at.address;
    if (tensor->at.size <= RKT_SMALL) {
        tensor->digest = reprokit_trail_digest(data, tensor->at.size, tensor->salt);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        tensor->digest = reprokit_trail_digest(data, tensor->at.size, tensor->salt);
        Py_END_ALLOW_THREADS;
    }
}

/* Returns the bytes of a tensor without gaps. */
static uint64_t dense_bytes(const struct dl_tensor *shaped) {
    uint64_t count = 1;
    for (int32_t i = 0; i < shaped->ndim; i++) count *= (uint64_t)shaped->shape[i];
    return count * shaped->lanes * shaped->bits / 8;
}

/* Digests a tensor; false if its bytes are not all of its state, or are not dense in memory. One that is not contiguous
 * is dense if it has a salt. `last` has the tensor digested just before, if any, and gets this one. */
static bool digest_tensor(const struct classes *classes, const struct salts *salts, PyObject *tensor,
                          struct digested *last, PyObject *keys) {
    struct digested next = {.digest = 0};
    struct dl_tensor shaped;
    bool is_in_order = locate(classes, tensor, &next.at, &shaped);
    if (!is_in_order && next.at.size != UINT64_MAX) return false;
    if (shaped.ndim > MAX_AXES || rkp_is_negative(tensor)) return false;
    if (!is_in_order) next.at.size = dense_bytes(&shaped);
    if (!find_salt(salts, tensor, layout_key(tensor, &shaped, is_in_order), &next.salt, keys)) return false;
    bool is_last = last->salt == next.salt && !memcmp(&last->at, &next.at, sizeof(next.at));
    if (!is_last) digest_bytes(&next);
    if (!is_last) *last = next;
    return true;
}

/* Adds a tensor to a digest; false if it cannot be digested in place. */
static bool fold(const struct classes *classes, const struct salts *salts, PyObject *tensor, uint64_t *digest) {
    struct digested last = {.digest = 0};
    if (!digest_tensor(classes, salts, tensor, &last, NULL)) return false;
    *digest = rkt_mix(*digest + last.digest);
    return true;
}

bool rkp_fold_each(const struct classes *classes, const struct salts *salts, PyObject *tensors, uint64_t *digest,
                   PyObject *keys) {
    struct digested last = {.digest = 0};
    Py_ssize_t count = PySequence_Size(tensors);
    bool is_whole = count >= 0;
    for (Py_ssize_t i = 0; i < count && is_whole; i++) {
        PyObject *tensor = PySequence_GetItem(tensors, i);
        is_whole = tensor && digest_tensor(classes, salts, tensor, &last, keys);
        if (is_whole) *digest = rkt_mix(*digest + last.digest);
        Py_XDECREF(tensor);
    }
    return is_whole;
}

static bool parse_classes(PyObject *context, struct classes *classes, struct salts *salts) {
    return PyArg_ParseTuple(context, "OOO!O", &classes->plain, &classes->parameter, &PyDict_Type, &salts->cache,
                            &salts->compute);
}

static bool is_few(PyObject *batch) {
    Py_ssize_t count = PyTuple_CheckExact(batch) || PyList_CheckExact(batch) ? PySequence_Size(batch) : -1;
    return count >= 0 && count <= MAX_TENSORS;
}

/* Folds a batch; returns its tensors, each followed by its version counter, or NULL if one cannot be folded. */
static PyObject *fold_each(const struct classes *classes, const struct salts *salts, PyObject *batch,
                           uint64_t *digest) {
    Py_ssize_t count = PySequence_Size(batch);
    PyObject *fetched = PyTuple_New(2 * count);
    for (Py_ssize_t i = 0; fetched && i < count; i++) {
        PyObject *tensor = PySequence_GetItem(batch, i);
        if (tensor) PyTuple_SetItem(fetched, 2 * i, tensor);
        PyObject *changes =
            tensor && fold(classes, salts, tensor, digest) ? PyObject_GetAttr(tensor, name_of_version) : NULL;
        if (changes)
            PyTuple_SetItem(fetched, 2 * i + 1, changes);
        else
            Py_CLEAR(fetched);
    }
    return fetched;
}

PyObject *rkp_fold(PyObject *module, PyObject *arguments) {
    (void)module;
    struct classes classes;
    struct salts salts;
    PyObject *context, *tensors;
    unsigned long long before;
    if (!PyArg_ParseTuple(arguments, "OKO", &context, &before, &tensors) || !parse_classes(context, &classes, &salts))
        return NULL;
    uint64_t digest = before;
    bool is_whole = rkp_fold_each(&classes, &salts, tensors, &digest, NULL);
    if (PyErr_Occurred()) return NULL;
    if (!is_whole) Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(digest);
}

/* The following functions fill the thread's struct rkt_facts, which the agent keeps until the step is written. */

PyObject *rkp_trail_batch(PyObject *module, PyObject *arguments) {
    (void)module;
    struct classes classes;
    struct salts salts;
    PyObject *context, *batch;
    unsigned long long address;
    if (!PyArg_ParseTuple(arguments, "OKO", &context, &address, &batch) || !parse_classes(context, &classes, &salts))
        return NULL;
    if (!is_few(batch)) Py_RETURN_NONE;
    struct rkt_facts *facts = (struct rkt_facts *)(uintptr_t)address;
    uint64_t digest = facts->batch;
    PyObject *fetched = fold_each(&classes, &salts, batch, &digest);
    if (!fetched) {
        if (PyErr_Occurred()) return NULL;
        Py_RETURN_NONE;
    }
    facts->batch = digest;
    facts->flags |= facts->flags & RKT_BATCH_PARTIAL ? 0 : RKT_BATCH;
    return fetched;
}

PyObject *rkp_trail_loss(PyObject *module, PyObject *arguments) {
    (void)module;
    struct classes classes;
    struct salts salts;
    PyObject *context, *loss;
    unsigned long long address;
    if (!PyArg_ParseTuple(arguments, "OKO", &context, &address, &loss) || !parse_classes(context, &classes, &salts))
        return NULL;
    struct rkt_facts *facts = (struct rkt_facts *)(uintptr_t)address;
    uint64_t digest = facts->loss;
    bool is_whole = fold(&classes, &salts, loss, &digest);
    if (PyErr_Occurred()) return NULL;
    if (!is_whole) Py_RETURN_FALSE;
    facts->loss = digest;
    facts->flags |= RKT_LOSS;
    Py_RETURN_TRUE;
}

/* Returns whether the first call since a step has one argument, the unchanged first tensor of the batch. */
PyObject *rkp_trail_input(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *fetched, *called_with;
    unsigned long long address;
    if (!PyArg_ParseTuple(arguments, "KOO!", &address, &fetched, &PyTuple_Type, &called_with)) return NULL;
    struct rkt_facts *facts = (struct rkt_facts *)(uintptr_t)address;
    bool is_first_call = PyTuple_Check(fetched) && PyTuple_Size(fetched) && PyTuple_Size(called_with) == 1 &&
                         !(facts->flags & RKT_CALLED) && PyTuple_GetItem(called_with, 0) == PyTuple_GetItem(fetched, 0);
    if (!is_first_call) Py_RETURN_FALSE;
    uint64_t changes = rkp_number(PyObject_GetAttr(PyTuple_GetItem(fetched, 0), name_of_version));
    if (PyErr_Occurred()) return NULL;
    if (changes != PyLong_AsUnsignedLongLong(PyTuple_GetItem(fetched, 1))) Py_RETURN_FALSE;
    facts->inputs = reprokit_trail_fold(0, NULL, 0, 1);
    facts->flags |= RKT_CALLED | RKT_INPUTS;
    Py_RETURN_TRUE;
}

/* ---- random generators ----------------------------------------------------------------------------------------- */

/* Returns a module's variable as a borrowed reference; NULL if there is none. */
static PyObject *module_variable(PyObject *modules, PyObject *module, PyObject *name) {
    PyObject *loaded_module = PyDict_GetItem(modules, module);
    PyObject *variables = loaded_module && PyModule_Check(loaded_module) ? PyModule_GetDict(loaded_module) : NULL;
    return variables ? PyDict_GetItem(variables, name) : NULL;
}

/* Returns whether Python's and NumPy's generators are still these; None stands for an absent one. */
static bool are_generators_current(PyObject *modules, PyObject *python, PyObject *numpy) {
    PyObject *generator = module_variable(modules, name_of_random, name_of_inst);
    if ((generator ? generator : Py_None) != python) return false;
    PyObject *state = module_variable(modules, name_of_mtrand, name_of_rand);
    PyObject *bits = state ? PyObject_GetAttr(state, name_of_bit_generator) : NULL;
    bool is_same = (bits ? bits : Py_None) == numpy;
    PyErr_Clear();
    Py_XDECREF(bits);
    return is_same;
}

static PyObject *copied(uint64_t address, uint64_t size) {
    if (address) return PyBytes_FromStringAndSize((const char *)(uintptr_t)address, (Py_ssize_t)size);
    Py_INCREF(Py_None);
    return Py_None;
}

/* Returns whether an item of a tuple has the bytes at an address; None stands for none. */
static bool is_same_copy(PyObject *copies, Py_ssize_t at, uint64_t address, uint64_t size) {
    PyObject *copy = PyTuple_GetItem(copies, at);
    if (!copy || !PyBytes_Check(copy)) return copy == Py_None && !address;
    return address && (uint64_t)PyBytes_Size(copy) == size &&
           !memcmp(PyBytes_AsString(copy), (const void *)(uintptr_t)address, size);
}

PyObject *rkp_random_states(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *modules, *python, *numpy, *before;
    unsigned long long python_at, numpy_at, salt, offset, torch_at, torch_size;
    if (!PyArg_ParseTuple(arguments, "(O!OKOKK)K(KK)O", &PyDict_Type, &modules, &python, &python_at, &numpy, &numpy_at,
                          &salt, &offset, &torch_at, &torch_size, &before))
        return NULL;
    bool is_readable =
        python_at && (numpy == Py_None || (numpy_at && offset)) && are_generators_current(modules, python, numpy);
    PyObject *state = is_readable ? module_variable(modules, name_of_mtrand, name_of_rand) : NULL;
    if (!is_readable || (state == NULL) != (numpy == Py_None)) Py_RETURN_NONE;
    PyObject *following = PyObject_GetAttr(python, name_of_gauss_next);
    if (!following) return NULL;
    const struct {
        uint64_t address, size;
    } words = {state ? numpy_at : 0, RKT_WORDS}, gauss = {state ? (uint64_t)(uintptr_t)state + offset : 0, 16};
    if (PyTuple_Check(before) && PyTuple_GetItem(before, 1) == following &&
        is_same_copy(before, 0, python_at, RKT_WORDS) && is_same_copy(before, 2, words.address, words.size) &&
        is_same_copy(before, 3, gauss.address, gauss.size) && is_same_copy(before, 4, torch_at, torch_size)) {
        Py_DECREF(following);
        Py_INCREF(before);
        return before;
    }
    return Py_BuildValue("(NNNNN)", copied(python_at, RKT_WORDS), following, copied(words.address, words.size),
                         copied(gauss.address, gauss.size), copied(torch_at, torch_size));
}

/* PyTorch's generator: memory that changes with it, the content seen last, and a function that copies its state. */
struct generator {
    uint64_t now, seen, size;
    PyObject *refresh;
};

/* Copies the generator's state again if it has changed; false if an exception is set. */
static bool refresh_state(const struct generator *generator) {
    const void *now = (const void *)(uintptr_t)generator->now, *seen = (const void *)(uintptr_t)generator->seen;
    if (now && !memcmp(now, seen, generator->size)) return true;
    PyObject *result = PyObject_CallFunctionObjArgs(generator->refresh, NULL);
    Py_XDECREF(result);
    return result;
}

/* ---- parameters and gradients ---------------------------------------------------------------------------------- */

/* A series of steps: its function, the parameters' addresses seen last, and the array for the gradients' addresses. */
struct steps {
    struct rkt_series *series;
    uint64_t (*take)(struct rkt_series *, const struct rkt_facts *, const uint64_t *);
    const uint64_t *seen;
    uint64_t *pointers;
};

static bool set_gradient_pointer(const struct classes *classes, const struct steps *steps, Py_ssize_t i,
                                 PyObject *parameter, PyObject *gradients, uint64_t *changes) {
    struct rkt_stretch at;
    struct dl_tensor shaped;
    uint64_t size = steps->series->sizes[i];
    if (!locate(classes, parameter, &at, &shaped) || at.address != steps->seen[i] || at.size != size) return false;
    *changes += rkp_number(PyObject_GetAttr(parameter, name_of_version));
    PyObject *gradient = PyErr_Occurred() ? NULL : PyObject_GetAttr(parameter, name_of_grad);
    steps->pointers[i] = 0;
    bool is_readable = gradient == Py_None;
    if (gradient && !is_readable && locate(classes, gradient, &at, &shaped) && at.size == size &&
        (at.address || !size)) {
        steps->pointers[i] = at.address;
        is_readable = !PyList_Append(gradients, gradient);
    }
    Py_XDECREF(gradient);
    return is_readable;
}

/* Collects the gradients, which must be kept alive while they are read; NULL if some cannot be read in place. */
static PyObject *collect_gradients(const struct classes *classes, const struct steps *steps, PyObject *parameters,
                                   uint64_t *changes) {
    Py_ssize_t count = parameters == Py_None ? 0 : PyList_Size(parameters);
    PyObject *gradients = PyList_New(0);
    for (Py_ssize_t i = 0; gradients && i < count; i++)
        if (!set_gradient_pointer(classes, steps, i, PyList_GetItem(parameters, i), gradients, changes))
            Py_CLEAR(gradients);
    return gradients;
}

/* ---- a step ---------------------------------------------------------------------------------------------------- */

static uint64_t take(const struct steps *steps, const struct rkt_facts *facts) {
    uint64_t ticket;
    if (steps->series->bytes <= RKT_SMALL) return steps->take(steps->series, facts, steps->pointers);
    Py_BEGIN_ALLOW_THREADS;
    ticket = steps->take(steps->series, facts, steps->pointers);
    Py_END_ALLOW_THREADS;
    return ticket;
}

PyObject *rkp_trail_step(PyObject *module, PyObject *arguments) {
    (void)module;
    struct classes classes;
    struct generator generator;
    PyObject *modules, *python, *numpy, *parameters;
    unsigned long long series, function, seen, pointers, now, copied, copied_size, state, state_size, state_salt,
        python_at, numpy_at, words_salt, address, flags, how, before, buffers, more;
    if (!PyArg_ParseTuple(arguments, "(OO)(KKKKKKO)(O!OKOKK)(KKKK)OKKKKKK", &classes.plain, &classes.parameter, &now,
                          &copied, &copied_size, &state, &state_size, &state_salt, &generator.refresh, &PyDict_Type,
                          &modules, &python, &python_at, &numpy, &numpy_at, &words_salt, &series, &function, &seen,
                          &pointers, &parameters, &address, &flags, &how, &before, &buffers, &more))
        return NULL;
    struct steps steps = {(struct rkt_series *)(uintptr_t)series, NULL, (const uint64_t *)(uintptr_t)seen,
                          (uint64_t *)(uintptr_t)pointers};
    memcpy(&steps.take, &(uintptr_t){function}, sizeof(steps.take));
    generator.now = now, generator.seen = copied, generator.size = copied_size;
    uint64_t changes = 0;
    PyObject *gradients = NULL, *result = NULL;
    if (are_generators_current(modules, python, numpy) && refresh_state(&generator))
        gradients = collect_gradients(&classes, &steps, parameters, &changes);
    if (gradients) {
        struct rkt_facts *gathered = (struct rkt_facts *)(uintptr_t)address, facts = *gathered;
        facts.flags |= flags | RKT_TORCH | (python_at ? RKT_PYTHON : 0) | (numpy_at ? RKT_NUMPY : 0);
        facts.how = how, facts.before = before, facts.buffers = buffers, facts.torch_more = more;
        facts.torch_state = state, facts.torch_size = state_size, facts.torch_salt = state_salt;
        facts.python_state = python_at, facts.numpy_state = numpy_at, facts.words_salt = words_salt;
        memset(gathered, 0, sizeof(*gathered));
        result = Py_BuildValue("KKO", (unsigned long long)take(&steps, &facts), (unsigned long long)changes, gradients);
    }
    Py_XDECREF(gradients);
    if (result || PyErr_Occurred()) return result;
    Py_RETURN_NONE;
}
