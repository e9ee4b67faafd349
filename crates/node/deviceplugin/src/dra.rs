//! The messages of dynamic resource allocation, v1, generated from `proto/dra.proto`, with clients and servers.

tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
