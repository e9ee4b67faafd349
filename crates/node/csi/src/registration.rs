//! The messages of registration, generated from `proto/registration.proto`.

tonic::include_proto!("pluginregistration");
