//! Tests of clusters on AWS without AWS.

mod bucket;
mod requests;
