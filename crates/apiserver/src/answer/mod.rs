//! From stored bytes to answers: whole objects by splicing, tables and partial metadata by reading.

pub(crate) mod compress;
pub(crate) mod gzip_list;
mod list;
mod object;
mod printer_columns;
mod respond;
mod table;
mod watch;
mod written;

pub(crate) use self::{
    list::list,
    object::{made, object},
    respond::{bytes, status, value, written},
    watch::{bookmark, error_frame, frame},
    written::ListMeta,
};
