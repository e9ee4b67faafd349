//! Reading, converting and writing, beside kOps' own files where they are given and on tables of our own.

mod conversion;
mod golden;
mod strict;
mod validation;
