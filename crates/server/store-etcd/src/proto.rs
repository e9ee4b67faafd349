//! The generated messages and clients of etcd's v3 API.

#![allow(clippy::all, clippy::too_many_lines, unreachable_pub)]

tonic::include_proto!("etcdserverpb");
