//! Tests of reading, converting and writing, against kOps' own files where available, and with our own tables.

mod conversion;
mod golden;
mod strict;
mod validation;
