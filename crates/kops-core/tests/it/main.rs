//! Completion, beside kOps' own files where they are given and on tables of our own.

mod completed;
mod created;
mod golden;
mod node;
