"""The messages of TensorFlow: SavedModel, checkpoints, events, examples; see messages for how to read them."""

from __future__ import annotations

from collections.abc import Iterator

from reprokit.artifacts.elements import Blob, Limits, Noise, Part, Source, Value
from reprokit.artifacts.formats.messages import TypedList, Values, Walker, schema, written
from reprokit.artifacts.formats.protobuf import BYTES, VARINT, Field, signed
from reprokit.artifacts.sources import piece
from reprokit.errors import ArtifactDamaged

TYPES = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 7: "string", 8: "complex64", 9: "int64",
    10: "bool", 11: "qint8", 12: "quint8", 13: "qint32", 14: "bfloat16", 15: "qint16", 16: "quint16", 17: "uint16",
    18: "complex128", 19: "float16", 20: "resource", 21: "variant", 22: "uint32", 23: "uint64", 24: "float8_e5m2",
    25: "float8_e4m3fn", 26: "float8_e4m3fnuz", 27: "float8_e4m3b11fnuz", 28: "float8_e5m2fnuz", 29: "int4",
    30: "uint4", 31: "int2", 32: "uint2", 33: "float4_e2m1fn",
}  # fmt: skip
QUANTISED = {name: name[1:] for name in ("qint8", "quint8", "qint32", "qint16", "quint16")}
NAMES = {number: QUANTISED.get(name, name) for number, name in TYPES.items()}  # as elements are compared
MOST_DIMENSIONS = 254

SCHEMA = schema("""
SavedModel 1=saved_model_schema_version:int64 2=meta_graphs:MetaGraphDef*
MetaGraphDef 1=meta_info_def:MetaGraphDef.MetaInfoDef 2=graph_def:GraphDef 3=saver_def:SaverDef
    4=collection_def:{string:CollectionDef} 5=signature_def:{string:SignatureDef} 6=asset_file_def:AssetFileDef*
    7=object_graph_def:SavedObjectGraph
MetaGraphDef.MetaInfoDef 1=meta_graph_version:string 2=stripped_op_list:OpList 3=any_info:Any 4=tags:string*
    5=tensorflow_version:string 6=tensorflow_git_version:string 7=stripped_default_attrs:bool
    8=function_aliases:{string:string}
OpList 1=op:OpDef*name
OpDef 1=name:string 2=input_arg:OpDef.ArgDef*name 3=output_arg:OpDef.ArgDef*name 4=attr:OpDef.AttrDef*name
    5=summary:string 6=description:string 8=deprecation:OpDeprecation 16=is_aggregate:bool 17=is_stateful:bool
    18=is_commutative:bool 19=allows_uninitialized_input:bool 20=control_output:string*
    21=is_distributed_communication:bool
OpDef.ArgDef 1=name:string 2=description:string 3=type:dtype 4=type_attr:string 5=number_attr:string
    6=type_list_attr:string 7=handle_data:ResourceHandleProto.DtypeAndShape* 16=is_ref:bool
    17=experimental_full_type:FullTypeDef
ResourceHandleProto.DtypeAndShape 1=dtype:dtype 2=shape:TensorShapeProto
TensorShapeProto 2=dim:TensorShapeProto.Dim* 3=unknown_rank:bool
TensorShapeProto.Dim 1=size:int64 2=name:string
FullTypeDef 1=type_id:enum 2=args:FullTypeDef* 3=s:string 4=i:int64
OpDef.AttrDef 1=name:string 2=type:string 3=default_value:AttrValue 4=description:string 5=has_minimum:bool
    6=minimum:int64 7=allowed_values:AttrValue
AttrValue 1=list:AttrValue.ListValue 2=s:bytes 3=i:int64 4=f:float 5=b:bool 6=type:dtype 7=shape:TensorShapeProto
    8=tensor:TensorProto 9=placeholder:string 10=func:NameAttrList
TensorProto 1=dtype:dtype 2=tensor_shape:TensorShapeProto 3=version_number:int32 4=tensor_content:bytes
    5=float_val:float* 6=double_val:double* 7=int_val:int32* 8=string_val:bytes* 9=scomplex_val:float*
    10=int64_val:int64* 11=bool_val:bool* 12=dcomplex_val:double* 13=half_val:int32*
    14=resource_handle_val:ResourceHandleProto* 15=variant_val:VariantTensorDataProto* 16=uint32_val:uint32*
    17=uint64_val:uint64* 18=float8_val:bytes
ResourceHandleProto 1=device:string 2=container:string 3=name:string 4=hash_code:uint64 5=maybe_type_name:string
    6=dtypes_and_shapes:ResourceHandleProto.DtypeAndShape*
VariantTensorDataProto 1=type_name:string 2=metadata:bytes 3=tensors:TensorProto*
AttrValue.ListValue 2=s:bytes* 3=i:int64* 4=f:float* 5=b:bool* 6=type:dtype* 7=shape:TensorShapeProto*
    8=tensor:TensorProto* 9=func:NameAttrList*
NameAttrList 1=name:string 2=attr:{string:AttrValue}
OpDeprecation 1=version:int32 2=explanation:string
Any 1=type_url:string 2=value:bytes
GraphDef 1=node:NodeDef*name 2=library:FunctionDefLibrary 3=version:int32 4=versions:VersionDef
    5=debug_info:GraphDebugInfo
NodeDef 1=name:string 2=op:string 3=input:string* 4=device:string 5=attr:{string:AttrValue}
    6=experimental_debug_info:NodeDef.ExperimentalDebugInfo 7=experimental_type:FullTypeDef
NodeDef.ExperimentalDebugInfo 1=original_node_names:string* 2=original_func_names:string*
VersionDef 1=producer:int32 2=min_consumer:int32 3=bad_consumers:int32*
FunctionDefLibrary 1=function:FunctionDef*signature.name~ 2=gradient:GradientDef*
    3=registered_gradients:RegisteredGradient*
FunctionDef 1=signature:OpDef 3=node_def:NodeDef*name 4=ret:{string:string} 5=attr:{string:AttrValue}
    6=control_ret:{string:string} 7=arg_attr:{uint32:FunctionDef.ArgAttrs} 8=resource_arg_unique_id:{uint32:uint32}
FunctionDef.ArgAttrs 1=attr:{string:AttrValue}
GradientDef 1=function_name:string 2=gradient_func:string
RegisteredGradient 1=gradient_func:string 2=registered_op_type:string
GraphDebugInfo 1=files:string* 2=traces:{string:GraphDebugInfo.StackTrace}
    4=frames_by_id:{fixed64:GraphDebugInfo.FileLineCol} 5=name_to_trace_id:{string:fixed64}
    6=traces_by_id:{fixed64:GraphDebugInfo.StackTrace}
GraphDebugInfo.FileLineCol 1=file_index:int32 2=line:int32 3=col:int32 4=func:string 5=code:string
GraphDebugInfo.StackTrace 1=file_line_cols:GraphDebugInfo.FileLineCol* 2=frame_id:fixed64*
SaverDef 1=filename_tensor_name:string 2=save_tensor_name:string 3=restore_op_name:string 4=max_to_keep:int32
    5=sharded:bool 6=keep_checkpoint_every_n_hours:float 7=version:enum
CollectionDef 1=node_list:CollectionDef.NodeList 2=bytes_list:CollectionDef.BytesList
    3=int64_list:CollectionDef.Int64List 4=float_list:CollectionDef.FloatList 5=any_list:CollectionDef.AnyList
CollectionDef.NodeList 1=value:string*
CollectionDef.BytesList 1=value:bytes*
CollectionDef.Int64List 1=value:int64*
CollectionDef.FloatList 1=value:float*
CollectionDef.AnyList 1=value:Any*
SignatureDef 1=inputs:{string:TensorInfo} 2=outputs:{string:TensorInfo} 3=method_name:string
    4=defaults:{string:TensorProto}
TensorInfo 1=name:string 2=dtype:dtype 3=tensor_shape:TensorShapeProto 4=coo_sparse:TensorInfo.CooSparse
    5=composite_tensor:TensorInfo.CompositeTensor
TensorInfo.CooSparse 1=values_tensor_name:string 2=indices_tensor_name:string 3=dense_shape_tensor_name:string
TensorInfo.CompositeTensor 1=type_spec:TypeSpecProto 2=components:TensorInfo*
TypeSpecProto 1=type_spec_class:enum 2=type_state:StructuredValue 3=type_spec_class_name:string
    4=num_flat_components:int32
StructuredValue 1=none_value:NoneValue 11=float64_value:double 12=int64_value:sint64 13=string_value:string
    14=bool_value:bool 31=tensor_shape_value:TensorShapeProto 32=tensor_dtype_value:dtype
    33=tensor_spec_value:TensorSpecProto 34=type_spec_value:TypeSpecProto
    35=bounded_tensor_spec_value:BoundedTensorSpecProto 51=list_value:ListValue 52=tuple_value:TupleValue
    53=dict_value:DictValue 54=named_tuple_value:NamedTupleValue 55=tensor_value:TensorProto
    56=numpy_value:TensorProto
NoneValue
TensorSpecProto 1=name:string 2=shape:TensorShapeProto 3=dtype:dtype
BoundedTensorSpecProto 1=name:string 2=shape:TensorShapeProto 3=dtype:dtype 4=minimum:TensorProto
    5=maximum:TensorProto
ListValue 1=values:StructuredValue*
TupleValue 1=values:StructuredValue*
DictValue 1=fields:{string:StructuredValue}
NamedTupleValue 1=name:string 2=values:PairValue*
PairValue 1=key:string 2=value:StructuredValue
AssetFileDef 1=tensor_info:TensorInfo 2=filename:string
SavedObjectGraph 1=nodes:SavedObject* 2=concrete_functions:{string:SavedConcreteFunction}
SavedObject 1=children:TrackableObjectGraph.TrackableObject.ObjectReference*local_name
    3=slot_variables:TrackableObjectGraph.TrackableObject.SlotVariableReference* 4=user_object:SavedUserObject
    5=asset:SavedAsset 6=function:SavedFunction 7=variable:SavedVariable
    8=bare_concrete_function:SavedBareConcreteFunction 9=constant:SavedConstant 10=resource:SavedResource
    11=saveable_objects:{string:SaveableObject} 12=captured_tensor:CapturedTensor 13=registered_name:string
    14=serialized_user_proto:Any 15=dependencies:TrackableObjectGraph.TrackableObject.ObjectReference*local_name
    16=registered_saver:string
TrackableObjectGraph.TrackableObject.ObjectReference 1=node_id:int32 2=local_name:string
TrackableObjectGraph.TrackableObject.SlotVariableReference 1=original_variable_node_id:int32 2=slot_name:string
    3=slot_variable_node_id:int32
SavedUserObject 1=identifier:string 2=version:VersionDef 3=metadata:string
SavedAsset 1=asset_file_def_index:int32
SavedFunction 1=concrete_functions:string* 2=function_spec:FunctionSpec
FunctionSpec 1=fullargspec:StructuredValue 2=is_method:bool 5=input_signature:StructuredValue 6=jit_compile:enum
SavedVariable 1=dtype:dtype 2=shape:TensorShapeProto 3=trainable:bool 4=synchronization:enum 5=aggregation:enum
    6=name:string 7=device:string 8=experimental_distributed_variable_components:SavedVariable*
SavedBareConcreteFunction 1=concrete_function_name:string 2=argument_keywords:string*
    3=allowed_positional_arguments:int64 4=function_spec:FunctionSpec
SavedConstant 1=operation:string
SavedResource 1=device:string
CapturedTensor 1=name:string 2=concrete_function:string
SaveableObject 2=save_function:int32 3=restore_function:int32
SavedConcreteFunction 2=bound_inputs:int32* 3=canonicalized_input_signature:StructuredValue
    4=output_signature:StructuredValue
TrackableObjectGraph 1=nodes:TrackableObjectGraph.TrackableObject*
TrackableObjectGraph.TrackableObject 1=children:TrackableObjectGraph.TrackableObject.ObjectReference*local_name
    2=attributes:TrackableObjectGraph.TrackableObject.SerializedTensor*name
    3=slot_variables:TrackableObjectGraph.TrackableObject.SlotVariableReference* 4=registered_saver:RegisteredSaver
    5=has_checkpoint_values:BoolValue
TrackableObjectGraph.TrackableObject.SerializedTensor 1=name:string 2=full_name:string 3=checkpoint_key:string
RegisteredSaver 1=name:string 2=object_name:string
BoolValue 1=value:bool
BundleHeaderProto 1=num_shards:int32 2=endianness:enum 3=version:VersionDef
BundleEntryProto 1=dtype:dtype 2=shape:TensorShapeProto 3=shard_id:int32 4=offset:int64 5=size:int64
    6=crc32c:fixed32 7=slices:TensorSliceProto*
TensorSliceProto 1=extent:TensorSliceProto.Extent*
TensorSliceProto.Extent 1=start:int64 2=length:int64
FingerprintDef 1=saved_model_checksum:uint64 2=graph_def_program_hash:uint64 3=signature_def_hash:uint64
    4=saved_object_graph_hash:uint64 5=checkpoint_hash:uint64 6=version:VersionDef 7=uuid:string
Event 1=wall_time:double 2=step:int64 3=file_version:string 4=graph_def:GraphDef 5=summary:Summary
    6=log_message:LogMessage 7=session_log:SessionLog 8=tagged_run_metadata:TaggedRunMetadata
    9=meta_graph_def:MetaGraphDef 10=source_metadata:SourceMetadata
Summary 1=value:Summary.Value*tag
Summary.Value 1=tag:string 2=simple_value:float 3=obsolete_old_style_histogram:bytes 4=image:Summary.Image
    5=histo:HistogramProto 6=audio:Summary.Audio 7=node_name:string 8=tensor:TensorProto 9=metadata:SummaryMetadata
SummaryMetadata 1=plugin_data:SummaryMetadata.PluginData 2=display_name:string 3=summary_description:string
    4=data_class:enum
SummaryMetadata.PluginData 1=plugin_name:string 2=content:bytes
Summary.Image 1=height:int32 2=width:int32 3=colorspace:int32 4=encoded_image_string:bytes
HistogramProto 1=min:double 2=max:double 3=num:double 4=sum:double 5=sum_squares:double 6=bucket_limit:double*
    7=bucket:double*
Summary.Audio 1=sample_rate:float 2=num_channels:int64 3=length_frames:int64 4=encoded_audio_string:bytes
    5=content_type:string
LogMessage 1=level:enum 2=message:string
SessionLog 1=status:enum 2=checkpoint_path:string 3=msg:string
TaggedRunMetadata 1=tag:string 2=run_metadata:bytes
SourceMetadata 1=writer:string
Example 1=features:Features
Features 1=feature:{string:Feature}
Feature 1=bytes_list:BytesList 2=float_list:FloatList 3=int64_list:Int64List
BytesList 1=value:bytes*
FloatList 1=value:float*
Int64List 1=value:int64*
SequenceExample 1=context:Features 2=feature_lists:FeatureLists
FeatureLists 1=feature_list:{string:FeatureList}
FeatureList 1=feature:Feature*
""")
# The first is a sum over saved_model.pb, whose maps are written in any order; what is in it is compared there.
NOISE = ("saved_model_checksum", "uuid")


def walker(source: Source, limits: Limits) -> Walker:
    """Reads the messages of a source."""
    return Walker(source, limits, SCHEMA, {"TensorProto": tensor, "TensorShapeProto": _shape_part}, TYPES)


def shape(walker: Walker, at: int, end: int) -> tuple[tuple[int, ...], str]:
    """Return the lengths of a TensorShapeProto, and what it says besides."""
    lengths: list[int] = []
    more = ""
    for found in walker.wire.fields(at, end):
        if found.number == 2 and found.kind == BYTES:
            length, name = _dimension(walker, found)
            lengths.append(length)
            more += f" {len(lengths) - 1} is {name}" if name else ""
        else:
            more += " of unknown rank" if found[:3] == (3, VARINT, 1) else f" field {found.number} is {found.value}"
        if len(lengths) > MOST_DIMENSIONS:
            raise ArtifactDamaged("a shape has more dimensions than there can be")
    return tuple(lengths), more


def _dimension(walker: Walker, dimension: Field) -> tuple[int, str]:
    length, name = 0, ""
    for found in walker.wire.fields(dimension.at, dimension.end):
        if found.number == 1 and found.kind == VARINT:
            length = signed(found.value)
        else:
            name += walker.plain("string", found)
    return length, name


def _shape_part(walker: Walker, path: str, at: int, end: int) -> Iterator[Part]:
    lengths, more = shape(walker, at, end)
    texts = ("?" if length == -1 else str(length) for length in lengths)
    yield Value(path, f"[{', '.join(texts)}]{more}")


def tensor(walker: Walker, path: str, at: int, end: int) -> Iterator[Part]:
    """Yield a TensorProto: its elements as they stand in tensor_content, or in the list for their type."""
    found = Values(walker, path)
    lengths: tuple[int, ...] = ()
    dtype, more = 0, ""
    for field in found.fields(at, end, 4, _VALUES, {1: (VARINT,), 2: (BYTES,)}):
        if field.number == 1:
            dtype = field.value
        else:
            lengths, more = shape(walker, field.at, field.end)
    if more or any(length < 0 for length in lengths):
        yield Value(f"{path}/shape", f"{lengths}{more}")
        lengths = ()
    yield from found.rest("TensorProto", SCHEMA)
    if TYPES.get(dtype) in QUANTISED:
        yield Value(f"{path}/type", TYPES[dtype])
    yield from found.parts(NAMES.get(dtype, "") or f"type {dtype}", lengths, repeats=True)


_VALUES = {
    5: TypedList("float", ("float32",)),
    6: TypedList("double", ("float64",)),
    7: TypedList("int32", ("int32", "int16", "uint16", "int8", "uint8", "int4", "uint4", "int2", "uint2")),
    8: TypedList("bytes", ()),
    9: TypedList("float", ("complex64",)),
    10: TypedList("int64", ("int64",)),
    11: TypedList("bool", ("bool",)),
    12: TypedList("double", ("complex128",)),
    13: TypedList("int32", ("float16", "bfloat16")),
    16: TypedList("uint32", ("uint32",)),
    17: TypedList("uint64", ("uint64",)),
}


def string(name: str, source: Source, start: int, size: int) -> Part:
    """Bytes of a tensor of strings."""
    if size > 1 << 16:
        return Blob(name, piece(source, start, size))
    return Value(name, written(source.read(start, size)))


def saved_model(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield every value by its path, nodes by their names; the variables are a checkpoint beside it."""
    yield from walker(source, limits).message("", "SavedModel")


def meta_graph(source: Source, limits: Limits) -> Iterator[Part]:
    """Yield the same of NAME.meta."""
    yield from walker(source, limits).message("", "MetaGraphDef")


def fingerprint(source: Source, limits: Limits) -> Iterator[Part]:
    """Each field: sums of the parts of a SavedModel, a random identity, and the sum of how the file was written."""
    for part in walker(source, limits).message("", "FingerprintDef"):
        yield Noise(part.name, part.text) if isinstance(part, Value) and part.name in NOISE else part
