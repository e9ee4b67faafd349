//! Large lists as gzip, put together from blocks that are compressed once and kept while they are asked for.
//!
//! A list is cut where its objects' keys say so, and not at every so many objects: a write changes the block that its
//! object is in and no other. Each block is compressed by itself, so that a list's answer is joined from blocks as a
//! plain one is joined from objects.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use bytes::Bytes;
use flate2::{Compress, Compression, Crc, FlushCompress};
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use serve::Body;

use super::{
    compress,
    list::list_head,
    respond::bytes,
    written::{ListMeta, write_object},
};
use crate::registry::{Definition, Object};

/// One key in so many ends a block.
const SPACING: u32 = 64;
/// A block of large objects ends before that: others want their turn while it is compressed.
const MOST: usize = 256 << 10;
/// How many bytes of blocks are kept.
const KEPT: usize = 16 << 20;
/// What nobody has asked for so long is forgotten, at the latest after twice as long.
pub(crate) const WANTED: Duration = Duration::from_secs(60);

/// Objects that follow one another in a list, joined by commas and compressed.
struct Block {
    /// The objects are the same if they lie where these lay: a weak reference holds the place.
    objects: Box<[Weak<Object>]>,
    deflated: Bytes,
    crc: Crc,
}

impl Block {
    fn new(
        definition: &Definition,
        version: usize,
        objects: &[Arc<Object>],
    ) -> std::io::Result<Self> {
        let mut joined = Vec::with_capacity(objects.iter().map(|o| o.bytes.len() + 160).sum());
        let (served, typed) = (&definition.served[version], definition.custom.is_some());
        for object in objects {
            if !joined.is_empty() {
                joined.push(b',');
            }
            write_object(&mut joined, served, object, typed);
        }
        let mut crc = Crc::new();
        crc.update(&joined);
        let deflated = Bytes::copy_from_slice(&deflate(&joined)?);
        let objects = objects.iter().map(Arc::downgrade).collect();
        Ok(Self { objects, deflated, crc })
    }

    fn is_of(&self, objects: &[Arc<Object>]) -> bool {
        let same = |(kept, object): (&Weak<Object>, &Arc<Object>)| {
            std::ptr::eq(kept.as_ptr(), Arc::as_ptr(object))
        };
        self.objects.len() == objects.len() && self.objects.iter().zip(objects).all(same)
    }

    fn size(&self) -> usize {
        self.deflated.len() + self.objects.len() * size_of::<Weak<Object>>()
    }
}

/// Compresses text into a stream that ends with a whole byte, where another may go on.
///
/// What ends it comes only when the compressor is asked for it and has room; asked for less the next time, it forgets
/// it, as `DeflateEncoder::flush` does when its buffer is full.
fn deflate(text: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut compress = Compress::new(Compression::fast(), false);
    let mut out = Vec::with_capacity(text.len() / 4 + 64);
    loop {
        let done = compress.total_in() as usize;
        compress.compress_vec(&text[done..], &mut out, FlushCompress::Sync)?;
        if out.len() < out.capacity() {
            return Ok(out);
        }
        out.reserve(text.len() / 4 + 64);
    }
}

/// A block's first object, by its place in memory, and the version that it shows.
type Key = (usize, usize);

/// The blocks that have been asked for of late, and those that were before that.
#[derive(Default)]
struct Kept {
    young: HashMap<Key, Arc<Block>>,
    old: HashMap<Key, Arc<Block>>,
    young_bytes: usize,
}

impl Kept {
    fn get(&mut self, key: Key, objects: &[Arc<Object>]) -> Option<Arc<Block>> {
        let of = |block: &&Arc<Block>| block.is_of(objects);
        if let Some(block) = self.young.get(&key).filter(of) {
            return Some(block.clone());
        }
        let block = self.old.remove(&key).filter(|block| block.is_of(objects))?;
        self.put(key, block.clone());
        Some(block)
    }

    fn put(&mut self, key: Key, block: Arc<Block>) {
        self.young_bytes += block.size();
        if let Some(replaced) = self.young.insert(key, block) {
            self.young_bytes -= replaced.size();
        }
        if self.young_bytes > KEPT / 2 {
            self.age();
        }
    }

    fn age(&mut self) {
        self.old = std::mem::take(&mut self.young);
        self.young_bytes = 0;
    }
}

/// The compressed blocks of all lists.
#[derive(Default)]
pub(crate) struct Blocks(Mutex<Kept>);

impl Blocks {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what has not been asked for since the last call.
    pub(crate) fn age(&self) {
        self.lock().age();
    }

    fn block(
        &self,
        definition: &Definition,
        version: usize,
        objects: &[Arc<Object>],
    ) -> std::io::Result<Arc<Block>> {
        let key = (objects.first().map_or(0, |first| Arc::as_ptr(first) as usize), version);
        if let Some(block) = self.lock().get(key, objects) {
            return Ok(block);
        }
        let block = Arc::new(Block::new(definition, version, objects)?);
        self.lock().put(key, block.clone());
        Ok(block)
    }
}

/// Whether a list is worth compressing.
pub(crate) fn is_large(objects: &[Arc<Object>]) -> bool {
    let mut left = compress::LARGE as usize;
    objects.iter().any(|object| {
        left = left.saturating_sub(object.bytes.len());
        left == 0
    })
}

/// The answer to a list of whole objects as JSON, compressed.
pub(crate) fn list(
    blocks: Arc<Blocks>,
    definition: Arc<Definition>,
    version: usize,
    meta: &ListMeta,
    objects: Vec<Arc<Object>>,
) -> Response<Body> {
    let head = list_head(&definition.served[version], meta);
    let mut pieces =
        Pieces { blocks, definition, version, objects, next: 0, crc: Crc::new(), head: Some(head) };
    let frames = std::iter::from_fn(move || pieces.next_piece());
    let frames = futures_util::stream::iter(frames.map(|piece| piece.map(Frame::data)));
    let frames = futures_util::TryStreamExt::map_err(frames, serve::BoxError::from);
    let mut response = bytes(StatusCode::OK, "application/json", Bytes::new());
    *response.body_mut() = http_body_util::StreamBody::new(frames).boxed_unsync();
    compress::mark(&mut response);
    response
}

struct Pieces {
    blocks: Arc<Blocks>,
    definition: Arc<Definition>,
    version: usize,
    objects: Vec<Arc<Object>>,
    next: usize,
    crc: Crc,
    head: Option<String>,
}

impl Pieces {
    fn next_piece(&mut self) -> Option<std::io::Result<Bytes>> {
        if let Some(head) = self.head.take() {
            // The magic number, deflate, no flags, no time, fast, of no system in particular.
            let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];
            self.plain(&mut out, head.as_bytes());
            return Some(Ok(out.into()));
        }
        let start = self.next;
        if start > self.objects.len() {
            return None;
        }
        if start == self.objects.len() {
            self.next += 1;
            return Some(Ok(self.end()));
        }
        let length = block_length(&self.objects[start..]);
        self.next += length;
        let block =
            self.blocks.block(&self.definition, self.version, &self.objects[start..self.next]);
        let block = match block {
            Ok(block) => block,
            Err(error) => return Some(Err(error)),
        };
        self.crc.combine(&block.crc);
        if self.next == self.objects.len() {
            return Some(Ok(block.deflated.clone()));
        }
        let mut out = Vec::with_capacity(block.deflated.len() + 16);
        out.extend_from_slice(&block.deflated);
        self.plain(&mut out, b",");
        Some(Ok(out.into()))
    }

    /// Appends what is too short to compress, or as long as a name may be.
    fn plain(&mut self, out: &mut Vec<u8>, text: &[u8]) {
        self.crc.update(text);
        for part in text.chunks(usize::from(u16::MAX)) {
            let length = part.len() as u16;
            out.push(0);
            out.extend_from_slice(&length.to_le_bytes());
            out.extend_from_slice(&(!length).to_le_bytes());
            out.extend_from_slice(part);
        }
    }

    fn end(&mut self) -> Bytes {
        let mut out = Vec::new();
        self.plain(&mut out, b"]}\n");
        // An empty last block, the checksum and the length of it all.
        out.extend_from_slice(&[3, 0]);
        out.extend_from_slice(&self.crc.sum().to_le_bytes());
        out.extend_from_slice(&self.crc.amount().to_le_bytes());
        out.into()
    }
}

/// How many of a list's objects the block takes that begins with the first of them.
fn block_length(objects: &[Arc<Object>]) -> usize {
    let mut bytes = 0;
    let last = objects.iter().position(|object| {
        bytes += object.bytes.len();
        let mut crc = Crc::new();
        crc.update(object.key.as_bytes());
        crc.sum().is_multiple_of(SPACING) || bytes >= MOST
    });
    last.map_or(objects.len(), |last| last + 1)
}

#[cfg(test)]
mod tests;
