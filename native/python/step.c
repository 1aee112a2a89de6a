/* step.c - an extension module: what the agent needs of tensors and random generators at each step of a training. */
#include "python/step.h"

#define LIST_NAME(name, text) {&name_of_##name, text},
static const struct {
    PyObject **at;
    const char *text;
} names[] = {NAMES(LIST_NAME)};

/* ---- the module ------------------------------------------------------------------------------------------------ */

PyDoc_STRVAR(
    finite_text,
    "finite(plain, formats, tensors)\n--\n\n"
    "Whether the tensors of a list are finite; None where one is not of the class `plain`, does not lie in this\n"
    "process' memory or is not contiguous. `formats` has the number (enum rkt_format) of each dtype whose\n"
    "numbers can be not finite.");

PyDoc_STRVAR(use_exchange_text,
             "use_exchange(plain)\n--\n\n"
             "Have tensors of this class described by DLPack's exchange; whether it has one that is known.");

PyDoc_STRVAR(layouts_text,
             "layouts((plain, parameter), tensors)\n--\n\n"
             "Describe a list of tensors: bytes that differ if their number, a dtype or a shape does, and a struct\n"
             "rkt_array for each. None where one is not of the classes `plain` and `parameter`, not float32 or\n"
             "float64, empty, not contiguous, or not in this process' memory.");
PyDoc_STRVAR(
    reduce_text,
    "reduce(arrays, wanted)\n--\n\n"
    "Reduce struct rkt_arrays that follow each other, as reprokit_trail_reduce does; None for reductions that\n"
    "are not wanted.");
PyDoc_STRVAR(changes_text, "changes(tensors)\n--\n\n"
                           "How often these tensors were changed in place, together.");
PyDoc_STRVAR(note_changes_text,
             "note_changes(event)\n--\n\n"
             "Set `change_count` of the optimizer of an event to how often its parameters were changed.");
PyDoc_STRVAR(same_text, "same(left, right)\n--\n\nWhether two lists have the same objects.");
PyDoc_STRVAR(fold_text, "fold((plain, parameter, salts, salt_of), before, tensors)\n--\n\n"
                        "The digest so far, with that of these tensors of the classes `plain` and `parameter`; None\n"
                        "where the bytes of one are not all that it is. `salts` has what salt_of(tensor) gave.");
PyDoc_STRVAR(
    trail_batch_text,
    "trail_batch((plain, parameter, salts, salt_of), facts, batch)\n--\n\n"
    "Add a list or tuple of a few tensors of the classes `plain` and `parameter` to the batch in `facts`, the\n"
    "address of a struct rkt_facts. It gives each tensor and how often it was changed; None where the bytes\n"
    "of one are not all that it is, and nothing was added. `salts` has what salt_of(tensor) gave.");
PyDoc_STRVAR(trail_loss_text, "trail_loss((plain, parameter, salts, salt_of), facts, loss)\n--\n\n"
                              "Add a loss likewise; whether it was.");
PyDoc_STRVAR(trail_input_text,
             "trail_input(facts, fetched, arguments)\n--\n\n"
             "Add a call, where its one argument is the first tensor that trail_batch gave and nobody has changed it;\n"
             "whether it is, and no other call was added since a step.");
PyDoc_STRVAR(
    trail_step_text,
    "trail_step((plain, parameter), (now, seen, seen_size, state, size, salt, refresh),\n"
    "(modules, python, python_at, numpy, numpy_at, words_salt), (series, take, seen, pointers), parameters, facts,\n"
    "flags, how, before, buffers, torch_more)\n--\n\n"
    "Write down a step by `take` (reprokit_trail_step), if all can be read where it lies: tensors of the classes\n"
    "`plain` and `parameter`, parameters where `seen` says, the generators of `modules` that are named.\n"
    "refresh() copies the state of PyTorch's generator to `state` when `now` is not what was `seen`. It gives the\n"
    "ticket, how often the parameters were changed, and the gradients, which must live as long as they are read,\n"
    "and begins `facts` anew; None where nothing was written. Of None as parameters no pointers are set.");
PyDoc_STRVAR(number_text, "number(tensor)\n--\n\n"
                          "What tensors.number() says of it; None of one that it does not describe.");
PyDoc_STRVAR(bytes_of_text, "bytes_of(tensor)\n--\n\n"
                            "The bytes of a tensor of the class that is described, or a parameter, as long as it\n"
                            "lives; None of one whose bytes are not all that it is, or do not lie here, in order.");
PyDoc_STRVAR(loss_record_text,
             "loss_record(records, guard, series, size, step, value)\n--\n\n"
             "Write the record of a loss, a float of 4 or 8 bytes, if there is room and nobody else\n"
             "writes there: whether it did. `records` is the address of their place, its used bytes,\n"
             "size, and the number of lines.");

PyDoc_STRVAR(ledger_put_text, "ledger_put(waiting, guard, entries, numbers)\n--\n\n"
                              "Put the samples of a step where they wait, if there is room and nobody else writes\n"
                              "there: whether it did. `waiting` is the address of its place, count of puts and room.");
PyDoc_STRVAR(words_text, "words(indices)\n--\n\n"
                         "A list of integers below 2^32 as words of 32 bits; None of anything else.");
PyDoc_STRVAR(
    rows_with_values_text,
    "rows_with_values(address, size, lengths, strides, axis)\n--\n\n"
    "For each row along an axis of a tensor of floats in host memory, a byte: 1 if the row holds a value other\n"
    "than zero. `size` is that of an element in bytes, strides are in elements; None if it cannot be read.");

PyDoc_STRVAR(stack_key_text,
             "stack_key(depth)\n--\n\n"
             "Codes and instructions of the caller's frames, without the innermost `depth`, as bytes; None\n"
             "before CPython 3.11. Codes are identified by address.");
PyDoc_STRVAR(
    call_values_text,
    "call_values((plain, parameter, salts, salt_of, texts, text_digest), values)\n--\n\n"
    "The tensors among the values of an operator call, keys of their dtypes and shapes, and the digest of all\n"
    "values; None where one cannot be read in place. text_digest(others) gives that of the other values, unless\n"
    "`texts` has it.");
PyDoc_STRVAR(random_states_text,
             "random_states((modules, python, python_at, numpy, numpy_at, words_salt), gauss_offset, memory, before)\n"
             "--\n\n"
             "Copies of Python's state and its `gauss_next`, of NumPy's, of the second normal number that NumPy's\n"
             "RandomState has at this offset, and of `memory`, an address (or 0) and a size. It gives `before`,\n"
             "copies made earlier, if nothing has changed since; None where the generators are not these, or one is\n"
             "not known.");

PyDoc_STRVAR(tell_text,
             "tell(skip, failed, handlers, event)\n--\n\n"
             "Call the handlers of an event, each a pair of an error callback and a handler; `skip` if one of\n"
             "them does. failed(callback, error, handler) gets the exception of one.");
PyDoc_STRVAR(
    gate_text,
    "gate(original, wrapper, globals)\n--\n\n"
    "A function that calls `wrapper`, or `original` (None: nothing) while it is closed (is_open), while\n"
    "PyTorch compiles, as it says in `globals` (or None), or within itself on this thread (unless hears_nested).");

static PyMethodDef methods[] = {
    {"tell", rkp_tell, METH_VARARGS, tell_text},
    {"gate", rkp_gate, METH_VARARGS, gate_text},
    {"use_exchange", rkp_use_exchange, METH_O, use_exchange_text},
    {"finite", rkp_are_finite, METH_VARARGS, finite_text},
    {"number", rkp_loss_number, METH_O, number_text},
    {"bytes_of", rkp_bytes_of, METH_O, bytes_of_text},
    {"layouts", rkp_layouts, METH_VARARGS, layouts_text},
    {"reduce", rkp_reduce, METH_VARARGS, reduce_text},
    {"changes", rkp_changes, METH_O, changes_text},
    {"note_changes", rkp_note_changes, METH_O, note_changes_text},
    {"same", rkp_same, METH_VARARGS, same_text},
    {"fold", rkp_fold, METH_VARARGS, fold_text},
    {"trail_batch", rkp_trail_batch, METH_VARARGS, trail_batch_text},
    {"trail_loss", rkp_trail_loss, METH_VARARGS, trail_loss_text},
    {"trail_input", rkp_trail_input, METH_VARARGS, trail_input_text},
    {"random_states", rkp_random_states, METH_VARARGS, random_states_text},
    {"trail_step", rkp_trail_step, METH_VARARGS, trail_step_text},
    {"loss_record", rkp_loss_record, METH_VARARGS, loss_record_text},
    {"ledger_put", rkp_ledger_put, METH_VARARGS, ledger_put_text},
    {"words", rkp_words, METH_O, words_text},
    {"rows_with_values", rkp_rows_with_values, METH_VARARGS, rows_with_values_text},
    {"stack_key", rkp_stack_key, METH_O, stack_key_text},
    {"call_values", rkp_call_values, METH_VARARGS, call_values_text},
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
    rkp_find_frame_functions();
    return PyModule_Create(&definition);
}
