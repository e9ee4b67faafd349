//! The messages of devices' health, generated from `proto/drahealth.proto`, with clients and servers.

tonic::include_proto!("v1alpha1");
