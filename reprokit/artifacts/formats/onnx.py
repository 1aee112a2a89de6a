"""The messages of ONNX; see messages for how to read them."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.elements import Limits, Part, Source, Value
from reprokit.artifacts.formats import protobuf
from reprokit.artifacts.formats.messages import TypedList, Values, Walker, schema
from reprokit.artifacts.formats.protobuf import BYTES, VARINT, Field, signed
from reprokit.artifacts.sources import piece
from reprokit.dtypes import PACKED as PACKED_NAME
from reprokit.errors import ArtifactDamaged

TYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2", 27: "float6_e2m3fn", 28: "float6_e3m2fn",
}  # fmt: skip
PACKED = frozenset((21, 22, 23, 25, 26))  # several of their elements share a byte

SCHEMA = schema("""
ModelProto 1=ir_version:int64 2=producer_name:string 3=producer_version:string 4=domain:string 5=model_version:int64
    6=doc_string:string 7=graph:GraphProto 8=opset_import:OperatorSetIdProto*
    14=metadata_props:StringStringEntryProto* 20=training_info:TrainingInfoProto* 25=functions:FunctionProto*name
    26=configuration:DeviceConfigurationProto*name
OperatorSetIdProto 1=domain:string 2=version:int64
GraphProto 1=node:NodeProto*name|output 2=name:string 5=initializer:TensorProto*name 10=doc_string:string
    11=input:ValueInfoProto*name 12=output:ValueInfoProto*name 13=value_info:ValueInfoProto*name
    14=quantization_annotation:TensorAnnotation*tensor_name 15=sparse_initializer:SparseTensorProto*
    16=metadata_props:StringStringEntryProto*
NodeProto 1=input:string* 2=output:string* 3=name:string 4=op_type:string 5=attribute:AttributeProto*name
    6=doc_string:string 7=domain:string 8=overload:string 9=metadata_props:StringStringEntryProto*
    10=device_configurations:NodeDeviceConfigurationProto*
AttributeProto 1=name:string 2=f:float 3=i:int64 4=s:bytes 5=t:TensorProto 6=g:GraphProto 7=floats:float*
    8=ints:int64* 9=strings:bytes* 10=tensors:TensorProto* 11=graphs:GraphProto* 13=doc_string:string
    14=tp:TypeProto 15=type_protos:TypeProto* 20=type:enum 21=ref_attr_name:string
    22=sparse_tensor:SparseTensorProto 23=sparse_tensors:SparseTensorProto*
TensorProto 1=dims:int64* 2=data_type:dtype 3=segment:TensorProto.Segment 4=float_data:float* 5=int32_data:int32*
    6=string_data:bytes* 7=int64_data:int64* 8=name:string 9=raw_data:bytes 10=double_data:double*
    11=uint64_data:uint64* 12=doc_string:string 13=external_data:StringStringEntryProto* 14=data_location:enum
    16=metadata_props:StringStringEntryProto*
TensorProto.Segment 1=begin:int64 2=end:int64
StringStringEntryProto 1=key:string 2=value:string
SparseTensorProto 1=values:TensorProto 2=indices:TensorProto 3=dims:int64*
TypeProto 1=tensor_type:TypeProto.Tensor 4=sequence_type:TypeProto.Sequence 5=map_type:TypeProto.Map
    6=denotation:string 7=opaque_type:TypeProto.Opaque 8=sparse_tensor_type:TypeProto.SparseTensor
    9=optional_type:TypeProto.Optional
TypeProto.Tensor 1=elem_type:dtype 2=shape:TensorShapeProto
TensorShapeProto 1=dim:TensorShapeProto.Dimension*
TensorShapeProto.Dimension 1=dim_value:int64 2=dim_param:string 3=denotation:string
TypeProto.Sequence 1=elem_type:TypeProto
TypeProto.Map 1=key_type:int32 2=value_type:TypeProto
TypeProto.Optional 1=elem_type:TypeProto
TypeProto.SparseTensor 1=elem_type:dtype 2=shape:TensorShapeProto
TypeProto.Opaque 1=domain:string 2=name:string
NodeDeviceConfigurationProto 1=configuration_id:string 2=sharding_spec:ShardingSpecProto* 3=pipeline_stage:int32
ShardingSpecProto 1=tensor_name:string 2=device:int64* 3=index_to_device_group_map:IntIntListEntryProto*
    4=sharded_dim:ShardedDimProto*
IntIntListEntryProto 1=key:int64 2=value:int64*
ShardedDimProto 1=axis:int64 2=simple_sharding:SimpleShardedDimProto*
SimpleShardedDimProto 1=dim_value:int64 2=dim_param:string 3=num_shards:int64
ValueInfoProto 1=name:string 2=type:TypeProto 3=doc_string:string 4=metadata_props:StringStringEntryProto*
TensorAnnotation 1=tensor_name:string 2=quant_parameter_tensor_names:StringStringEntryProto*
TrainingInfoProto 1=initialization:GraphProto 2=algorithm:GraphProto
    3=initialization_binding:StringStringEntryProto* 4=update_binding:StringStringEntryProto*
FunctionProto 1=name:string 4=input:string* 5=output:string* 6=attribute:string* 7=node:NodeProto*name|output
    8=doc_string:string 9=opset_import:OperatorSetIdProto* 10=domain:string 11=attribute_proto:AttributeProto*name
    12=value_info:ValueInfoProto*name 13=overload:string 14=metadata_props:StringStringEntryProto*
DeviceConfigurationProto 1=name:string 2=num_devices:int32 3=device:string*
""")


EXTERNAL = 1  # data_location
MOST_ENTRIES = 16
_ELSEWHERE = ("float32", "complex64", "string", "int64", "float64", "complex128", "uint32", "uint64")
_NARROW = (f"{name}{PACKED_NAME}" if number in PACKED else name for number, name in TYPES.items())
_VALUES = {
    4: TypedList("float", ("float32", "complex64")),
    5: TypedList("int32", tuple(name for name in _NARROW if name not in _ELSEWHERE)),
    6: TypedList("bytes", ()),
    7: TypedList("int64", ("int64",)),
    10: TypedList("double", ("float64", "complex128")),
    11: TypedList("uint64", ("uint32", "uint64")),
}


def read(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield every value by its path: nodes by their names, else their first outputs."""
    walker = Walker(source, limits, SCHEMA, {"TensorProto": _tensor}, TYPES)
    yield from walker.message("", "ModelProto")


def _tensor(walker: Walker, path: str, at: int, end: int) -> Iterator[Part]:
    """Yield a TensorProto: its elements as raw bytes, as a list, or in a file beside."""
    found = Values(walker, path)
    dims: list[int] = []
    dtype = location = 0
    entries: list[Field] = []
    wanted = {1: (BYTES, VARINT), 2: (VARINT,), 13: (BYTES,), 14: (VARINT,)}
    for field in found.fields(at, end, 9, _VALUES, wanted):
        if field.number == 1:
            dims += _lengths(walker, field)
        elif field.number == 2:
            dtype = field.value
        elif field.number == 13:
            entries.append(field)
        else:
            location = field.value
    yield from found.rest("TensorProto", SCHEMA)
    name = TYPES.get(dtype, f"type {dtype}") + (PACKED_NAME if dtype in PACKED else "")
    if location == EXTERNAL or entries:
        yield from _external(found, location, entries, name, tuple(dims))
    else:
        yield from found.parts(name, tuple(dims))


def _lengths(walker: Walker, field: Field) -> Iterator[int]:
    numbers = protobuf.packed_varints(walker.wire, field) if field.kind == BYTES else iter((field.value,))
    for count, number in enumerate(numbers):
        if count > 64:
            raise ArtifactDamaged("a shape has more dimensions than there can be")
        yield signed(number)


def _external(
    found: Values, location: int, entries: list[Field], dtype: str, shape: tuple[int, ...]
) -> Iterator[Part]:  # fmt: skip
    """Yield a tensor whose bytes stand in a file beside, which is read where it is there."""
    facts = _facts(found.walker, entries[:MOST_ENTRIES])
    if location != EXTERNAL or len(entries) > MOST_ENTRIES or "location" not in facts:
        raise ArtifactDamaged(f"{found.path} does not say where its bytes are")
    beside = getattr(found.walker.source, "beside", None)
    file = beside.open(facts["location"]) if beside is not None else None
    if file is None:
        yield Value(found.path, f"{dtype} {list(shape)} in a file beside, which is not there: {sorted(facts.items())}")
        return
    offset, length = _number(facts, "offset", 0), _number(facts, "length", file.size)
    length = min(length, file.size - offset) if "length" not in facts else length
    yield from found.beside(piece(file, offset, length), dtype, shape)
    for key, text in sorted(facts.items()):
        if key not in ("location", "offset", "length"):
            yield Value(f"{found.path}/external_data/{key}", text)


def _facts(walker: Walker, entries: list[Field]) -> dict[str, str]:
    """Return the keys and values of external_data."""
    facts: dict[str, str] = {}
    for entry in entries:
        texts = {one.number: walker.plain("string", one) for one in walker.wire.fields(entry.at, entry.end)}
        if texts.keys() - {1, 2} or texts.get(1, "") in facts:
            raise ArtifactDamaged("external_data is damaged")
        facts[texts.get(1, "")] = texts.get(2, "")
    return facts


def _number(facts: dict[str, str], key: str, default: int) -> int:
    text = facts.get(key, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise ArtifactDamaged(f"the {key} {text[:40]!r} of external_data is no number")
    return int(text)
