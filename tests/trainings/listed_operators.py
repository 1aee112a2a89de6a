"""Prints the operators that a framework has: python listed_operators.py torch|tensorflow."""

import sys


def torch():
    """Those that draw random numbers have a second line."""
    import torch
    import torch._inductor.inductor_prims

    for schema in torch._C._jit_get_all_schemas():
        print(schema.name)
        try:
            tags = torch._C._get_operation_overload(schema.name, schema.overload_name)[2]
        except (RuntimeError, TypeError):
            continue
        if torch.Tag.nondeterministic_seeded in tags:
            print("random:" + schema.name)


def tensorflow():
    from tensorflow.core.framework import op_def_pb2
    from tensorflow.python.client import pywrap_tf_session

    names = op_def_pb2.OpList.FromString(pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList()))
    print(*(op.name for op in names.op))


globals()[sys.argv[1]]()
