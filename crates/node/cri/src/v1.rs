//! The messages of the protocol, generated from `proto/runtime.proto`.

tonic::include_proto!("runtime.v1");
