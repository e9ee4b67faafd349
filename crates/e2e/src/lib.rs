//! End-to-end tests drive the real binary; they are in `tests/it`.
