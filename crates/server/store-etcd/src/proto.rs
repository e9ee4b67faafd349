//! The generated messages and clients of etcd's v3 API.

#![allow(clippy::all, unreachable_pub)]

tonic::include_proto!("etcdserverpb");
