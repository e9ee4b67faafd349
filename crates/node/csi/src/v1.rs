//! The messages of CSI, generated from `proto/csi.proto`, and servers for the drivers of tests.

tonic::include_proto!("csi.v1");
