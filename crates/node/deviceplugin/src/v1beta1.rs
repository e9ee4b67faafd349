//! The messages of device plugins, generated from `proto/deviceplugin.proto`, with clients and servers.

tonic::include_proto!("v1beta1");
