//! Encodes responses: objects, lists, tables, watch events and Statuses. Whole objects are spliced from the stored
//! bytes; only tables, partial metadata and conversions parse them. Start with [`object`] and [`list`]. Selecting the
//! objects is up to [`crate::handlers`].

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
