//! The messages of podresources, generated from `proto/podresources.proto`, with clients and servers.

tonic::include_proto!("v1");
