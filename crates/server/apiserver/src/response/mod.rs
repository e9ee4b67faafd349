//! Encodes responses: objects, lists, tables, watch events and Statuses. Whole objects are spliced from the stored
//! bytes; only tables, partial metadata and conversions parse them. Start with [`object`] and [`list`]. Selecting the
//! objects is up to [`crate::handlers`].

mod builders;
pub(crate) mod compress;
mod encode;
pub(crate) mod gzip_list;
mod list;
mod object;
mod printer_columns;
mod table;
mod watch;

pub(crate) use self::{
    builders::{bytes, created, status, value, written},
    encode::ListMeta,
    list::list,
    object::{computed, object},
    watch::{bookmark, error_frame, frame},
};
