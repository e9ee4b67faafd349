//! Compresses large lists with gzip from cached blocks.
//!
//! The keys of the objects define the boundaries of blocks, instead of a fixed number of objects. A write therefore
//! changes only the block of its object. Blocks are compressed separately, and the body of a list is joined from them.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use flate2::{Compress, Compression, Crc, FlushCompress};
use http::{Response, StatusCode};
use http_body::Frame;
use http_body_util::BodyExt as _;
use parking_lot::{Mutex, MutexGuard};
use serve::Body;

use super::{
    builders::bytes,
    compress,
    encode::{ListMeta, write_object},
    list::list_head,
};
use crate::registry::{Definition, Object};

/// The divisor for hashes of keys: on average, one key in this many ends a block.
const SPACING: u32 = 64;
/// The size in bytes at which a block of large objects ends, so that compressing it does not delay other tasks.
const MOST: usize = 256 << 10;
/// The size of the cache in bytes.
const KEPT: usize = 16 << 20;
/// The interval at which blocks age. An unused block is dropped after one to two intervals.
pub(crate) const WANTED: Duration = Duration::from_secs(60);

/// Consecutive objects of a list, joined by commas and compressed.
struct Block {
    /// The objects. They are unchanged if their addresses are: a weak reference prevents the reuse of an address.
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

/// Compresses text into a deflate stream that ends at a byte boundary, so that another block can follow.
///
/// The marker at the end is only written while the output has spare capacity. If it is cut off, a further call does not
/// repeat it, which is also true for `DeflateEncoder::flush` with a full buffer.
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

/// The address of a block's first object, and the version in which it is encoded.
type Key = (usize, usize);

/// The recently used blocks, and those used in the interval before.
#[derive(Default)]
struct BlockCache {
    young: HashMap<Key, Arc<Block>>,
    old: HashMap<Key, Arc<Block>>,
    young_bytes: usize,
}

impl BlockCache {
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
pub(crate) struct Blocks(Mutex<BlockCache>);

impl Blocks {
    fn lock(&self) -> MutexGuard<'_, BlockCache> {
        self.0.lock()
    }

    /// Drops the blocks that have not been used since the last call.
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

/// Returns `true` if a list is large enough to be compressed.
pub(crate) fn is_large(objects: &[Arc<Object>]) -> bool {
    let mut left = compress::LARGE as usize;
    objects.iter().any(|object| {
        left = left.saturating_sub(object.bytes.len());
        left == 0
    })
}

/// Answers with a compressed list of whole objects in JSON.
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
            // The magic number, deflate, no flags, no time, fastest compression, unknown system.
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

    /// Appends an uncompressed block, for short text and for the list's metadata.
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
        // An empty last block, the checksum and the total length.
        out.extend_from_slice(&[3, 0]);
        out.extend_from_slice(&self.crc.sum().to_le_bytes());
        out.extend_from_slice(&self.crc.amount().to_le_bytes());
        out.into()
    }
}

/// Returns the number of objects in the block at the start of a list.
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
