//! bbolt's file format, as far as it is needed to read and change an etcd snapshot.

use std::io::{Read, Seek, SeekFrom, Write};

use super::error::Error;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
pub(super) const LARGEST_PAGE: usize = 64 << 10;
const SMALLEST_PAGE: usize = 1 << 10;
/// The size of a page's header: number, kind, count of elements, count of overflow pages.
const PAGE_HEADER: usize = 16;
const ELEMENT: usize = 16;
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
/// The flag of a leaf's element that is a bucket.
const BUCKET: u32 = 0x01;
/// The offset of a meta page's checksum after the page's header.
const META_SUM: usize = 56;
/// The deepest tree that is followed; etcd's buckets are shallower.
const DEEPEST: usize = 32;
/// The largest branch page that is read, with its overflow pages.
const LARGEST_BRANCH: usize = 1 << 20;
/// The largest leaf page that is read. etcd accepts values of 1.5 MiB by default, and a leaf holds a few of them.
const LARGEST_LEAF: usize = 64 << 20;
/// The page number in a meta page for a list of free pages that is not stored. bbolt then finds the free pages itself.
const NO_FREE_LIST: u64 = u64::MAX;

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Error> {
    let part = bytes.get(at..at + 2).and_then(|part| part.try_into().ok());
    part.map(u16::from_le_bytes).ok_or(TRUNCATED_PAGE)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Error> {
    let part = bytes.get(at..at + 4).and_then(|part| part.try_into().ok());
    part.map(u32::from_le_bytes).ok_or(TRUNCATED_PAGE)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, Error> {
    let part = bytes.get(at..at + 8).and_then(|part| part.try_into().ok());
    part.map(u64::from_le_bytes).ok_or(TRUNCATED_PAGE)
}

/// Reads a length or offset within a page.
fn length_at(bytes: &[u8], at: usize) -> Result<usize, Error> {
    usize::try_from(u32_at(bytes, at)?).map_err(|_| TRUNCATED_PAGE)
}

const TRUNCATED_PAGE: Error = Error::Damaged("a page ends before its elements");
const WRONG_KIND: Error = Error::Damaged("a page of a bucket has the wrong kind");

/// Returns the FNV-1a hash, which bbolt uses as a checksum.
pub(super) fn fnv(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, step)
}

/// The contents of a meta page.
#[derive(Clone, Copy, Debug)]
pub(super) struct MetaPage {
    page_size: usize,
    root: u64,
    /// The first unused page.
    next: u64,
    turn: u64,
}

impl MetaPage {
    fn read(page: &[u8]) -> Option<Self> {
        let meta = page.get(PAGE_HEADER..PAGE_HEADER + META_SUM + 8)?;
        let page_size = length_at(meta, 8).ok()?;
        let is_meta = u32_at(meta, 0).ok()? == MAGIC
            && u32_at(meta, 4).ok()? == VERSION
            && u64_at(meta, META_SUM).ok()? == fnv(meta.get(..META_SUM)?);
        let is_sane =
            page_size.is_power_of_two() && (SMALLEST_PAGE..=LARGEST_PAGE).contains(&page_size);
        (is_meta && is_sane).then_some(Self {
            page_size,
            root: u64_at(meta, 16).ok()?,
            next: u64_at(meta, 40).ok()?,
            turn: u64_at(meta, 48).ok()?,
        })
    }

    /// Returns the newer of the two meta pages, from the file's first bytes.
    pub(super) fn of_head(head: &[u8]) -> Result<Self, Error> {
        let mut sizes = (10..17).map(|power| 1_usize << power);
        let second = |size: usize| {
            head.get(size..).and_then(Self::read).filter(|meta| meta.page_size == size)
        };
        let first = Self::read(head);
        let other = match first {
            Some(first) => second(first.page_size),
            None => sizes.find_map(second),
        };
        let later = first.into_iter().chain(other).max_by_key(|meta| meta.turn);
        later.ok_or(Error::Foreign("it does not begin as an etcd database"))
    }

    pub(super) fn size(&self) -> u64 {
        self.next.saturating_mul(self.page_size as u64)
    }
}

/// An element of a leaf: its flags, key and value, and the value's offset in the page.
struct Element<'p> {
    kind: u32,
    key: &'p [u8],
    value: &'p [u8],
    at: usize,
}

/// A bucket: its value in the root's tree, and the value's offset in the file.
struct Bucket {
    at: u64,
    value: Vec<u8>,
}

/// A page with its overflow pages, and its offset in the file.
struct Page {
    at: u64,
    bytes: Vec<u8>,
}

/// A key and value of a bucket.
pub(super) type Pair = (Vec<u8>, Vec<u8>);
/// A function that is called with a bucket's name, and a key and value of it.
pub(super) type Visitor<'v> = dyn FnMut(&[u8], &[u8], &[u8]) -> Result<(), Error> + 'v;

/// A database open for changes.
pub(super) struct Bolt<'a, F> {
    file: &'a mut F,
    meta: MetaPage,
    end: u64,
}

impl<'a, F: Read + Write + Seek> Bolt<'a, F> {
    pub(super) fn open(file: &'a mut F, end: u64) -> Result<Self, Error> {
        file.seek(SeekFrom::Start(0))?;
        let mut head = Vec::new();
        Read::take(&mut *file, (2 * LARGEST_PAGE) as u64).read_to_end(&mut head)?;
        let meta = MetaPage::of_head(&head)?;
        if meta.size() > end {
            return Err(Error::Damaged("it is shorter than its header says"));
        }
        // Pages after the last used one are not needed.
        Ok(Self { file, meta, end: meta.size() })
    }

    fn read(&mut self, at: u64, length: usize) -> Result<Vec<u8>, Error> {
        if at.checked_add(length as u64).is_none_or(|end| end > self.end) {
            return Err(Error::Damaged("a page is beyond the file's end"));
        }
        self.file.seek(SeekFrom::Start(at))?;
        let mut bytes = vec![0; length];
        self.file.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        self.file.seek(SeekFrom::Start(at))?;
        Ok(self.file.write_all(bytes)?)
    }

    fn page(&mut self, number: u64) -> Result<Page, Error> {
        let size = self.meta.page_size;
        let at = number.checked_mul(size as u64).ok_or(TRUNCATED_PAGE)?;
        let header = self.read(at, PAGE_HEADER)?;
        if u64_at(&header, 0)? != number {
            return Err(Error::Damaged("a page has the number of another one"));
        }
        let largest = if u16_at(&header, 8)? == LEAF { LARGEST_LEAF } else { LARGEST_BRANCH };
        let more = length_at(&header, 12)?;
        let length = more.checked_add(1).and_then(|pages| pages.checked_mul(size));
        let length = length.filter(|length| *length <= largest);
        let length = length.ok_or(Error::Damaged("a page is larger than any of its kind"))?;
        Ok(Page { at, bytes: self.read(at, length)? })
    }

    fn bucket(&mut self, name: &str) -> Result<Option<Bucket>, Error> {
        let mut number = self.meta.root;
        for _ in 0..DEEPEST {
            let Page { at, bytes } = self.page(number)?;
            match u16_at(&bytes, 8)? {
                LEAF => {
                    let all = elements(&bytes)?;
                    let found = all.into_iter().find(|element| element.key == name.as_bytes());
                    let found = found.filter(|element| element.kind & BUCKET != 0);
                    return Ok(found.map(|element| Bucket {
                        at: at + element.at as u64,
                        value: element.value.to_vec(),
                    }));
                }
                BRANCH => match branch(&bytes, name.as_bytes())? {
                    Some(next) => number = next,
                    None => return Ok(None),
                },
                _ => return Err(WRONG_KIND),
            }
        }
        Err(Error::Damaged("a bucket's pages form a cycle"))
    }

    /// Reads the whole database and calls `visit` for each key of each bucket, in order. Verifies what bbolt relies on:
    /// every page has its kind, is used once, and has its keys in order.
    pub(super) fn visit(&mut self, visit: &mut Visitor<'_>) -> Result<(), Error> {
        // Every page is within the file, so this is bounded by the file's length.
        let pages = usize::try_from(self.end / self.meta.page_size as u64);
        let mut used = vec![false; pages.map_err(|_| TRUNCATED_PAGE)?];
        use_pages(&mut used, 0, 2)?;
        let mut buckets = Vec::new();
        self.walk(self.meta.root, &mut used, &mut |element| {
            if element.kind & BUCKET != 0 {
                buckets.push((element.key.to_vec(), element.value.to_vec()));
            }
            Ok(())
        })?;
        for (name, value) in buckets {
            self.walk_bucket(&value, &mut used, &mut |element| {
                visit(&name, element.key, element.value)
            })?;
        }
        Ok(())
    }

    /// Returns the keys and values of a small bucket.
    pub(super) fn pairs(&mut self, bucket: &str) -> Result<Vec<Pair>, Error> {
        let bucket = self.bucket(bucket)?.ok_or(Error::Foreign("etcd's buckets are missing"))?;
        let pages = usize::try_from(self.end / self.meta.page_size as u64);
        let mut used = vec![false; pages.map_err(|_| TRUNCATED_PAGE)?];
        let mut pairs = Vec::new();
        self.walk_bucket(&bucket.value, &mut used, &mut |element| {
            pairs.push((element.key.to_vec(), element.value.to_vec()));
            Ok(())
        })?;
        Ok(pairs)
    }

    fn walk_bucket(
        &mut self,
        value: &[u8],
        used: &mut [bool],
        visit: &mut dyn FnMut(&Element<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        match u64_at(value, 0)? {
            // A small bucket is stored inline, as a page within its own value.
            0 => visit_leaf(value.get(16..).ok_or(TRUNCATED_PAGE)?, &mut Vec::new(), visit),
            root => self.walk(root, used, visit),
        }
    }

    /// Calls `visit` for each element of the tree below a page.
    fn walk(
        &mut self,
        root: u64,
        used: &mut [bool],
        visit: &mut dyn FnMut(&Element<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (mut open, mut last) = (vec![(root, 0)], Vec::new());
        while let Some((number, depth)) = open.pop() {
            if depth >= DEEPEST {
                return Err(Error::Damaged("a bucket's pages are too deep"));
            }
            let Page { bytes, .. } = self.page(number)?;
            use_pages(used, number, bytes.len() / self.meta.page_size)?;
            match u16_at(&bytes, 8)? {
                LEAF => visit_leaf(&bytes, &mut last, visit)?,
                BRANCH => {
                    let children = (0..usize::from(u16_at(&bytes, 10)?))
                        .rev()
                        .map(|index| u64_at(&bytes, PAGE_HEADER + index * ELEMENT + 8));
                    for child in children {
                        open.push((child?, depth + 1));
                    }
                }
                _ => return Err(WRONG_KIND),
            }
        }
        Ok(())
    }

    /// Replaces the contents of a bucket, on a page after all others. A missing bucket is skipped.
    pub(super) fn replace_bucket(&mut self, name: &str, content: &[Pair]) -> Result<(), Error> {
        let Some(bucket) = self.bucket(name)? else { return Ok(()) };
        let mut content = content.to_vec();
        content.sort();
        let number = self.meta.next;
        let mut page = vec![0; PAGE_HEADER + content.len() * ELEMENT];
        for (index, (key, value)) in content.iter().enumerate() {
            let element = PAGE_HEADER + index * ELEMENT;
            let place = page.len() - element;
            put(&mut page, element + 4, place)?;
            put(&mut page, element + 8, key.len())?;
            put(&mut page, element + 12, value.len())?;
            page.extend_from_slice(key);
            page.extend_from_slice(value);
        }
        let pages = page.len().div_ceil(self.meta.page_size);
        page.resize(pages * self.meta.page_size, 0);
        set(&mut page, 0, &number.to_le_bytes());
        set(&mut page, 8, &LEAF.to_le_bytes());
        let count = u16::try_from(content.len()).map_err(|_| Error::Foreign("too many members"))?;
        set(&mut page, 10, &count.to_le_bytes());
        put(&mut page, 12, pages - 1)?;
        self.write(self.end, &page)?;
        self.write(bucket.at, &number.to_le_bytes())?;
        self.meta.next += pages as u64;
        self.end = self.meta.size();
        Ok(())
    }

    /// Updates the current meta page, and returns the length of the file.
    pub(super) fn finish(self) -> Result<u64, Error> {
        for number in 0..2_u64 {
            let at = number * self.meta.page_size as u64 + PAGE_HEADER as u64;
            self.file.seek(SeekFrom::Start(at))?;
            let mut meta = [0; META_SUM + 8];
            self.file.read_exact(&mut meta)?;
            if u64_at(&meta, 48)? != self.meta.turn {
                continue;
            }
            // Replaced pages are free now, and bbolt finds them.
            set(&mut meta, 32, &NO_FREE_LIST.to_le_bytes());
            set(&mut meta, 40, &self.meta.next.to_le_bytes());
            let sum = fnv(meta.get(..META_SUM).unwrap_or_default());
            set(&mut meta, META_SUM, &sum.to_le_bytes());
            self.file.seek(SeekFrom::Start(at))?;
            self.file.write_all(&meta)?;
        }
        self.file.flush()?;
        Ok(self.end)
    }
}

fn set(bytes: &mut [u8], at: usize, what: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + what.len()) {
        place.copy_from_slice(what);
    }
}

fn put(bytes: &mut [u8], at: usize, number: usize) -> Result<(), Error> {
    let number = u32::try_from(number).map_err(|_| Error::Foreign("too many members"))?;
    set(bytes, at, &number.to_le_bytes());
    Ok(())
}

/// Marks pages as used, which must be within the database and free.
fn use_pages(used: &mut [bool], number: u64, count: usize) -> Result<(), Error> {
    let first = usize::try_from(number).map_err(|_| TRUNCATED_PAGE)?;
    let pages = first.checked_add(count).and_then(|end| used.get_mut(first..end));
    let pages = pages.ok_or(Error::Damaged("a page is beyond the file's end"))?;
    if pages.contains(&true) {
        return Err(Error::Damaged("a page is used twice"));
    }
    pages.fill(true);
    Ok(())
}

/// Calls `visit` for each element of a leaf page, whose keys must follow `last`.
fn visit_leaf(
    page: &[u8],
    last: &mut Vec<u8>,
    visit: &mut dyn FnMut(&Element<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    for element in elements(page)? {
        if element.key <= last.as_slice() {
            return Err(Error::Damaged("the keys of a bucket are not in order"));
        }
        visit(&element)?;
        last.clear();
        last.extend_from_slice(element.key);
    }
    Ok(())
}

/// Returns the elements of a leaf page.
fn elements(page: &[u8]) -> Result<Vec<Element<'_>>, Error> {
    if u16_at(page, 8)? != LEAF {
        return Err(WRONG_KIND);
    }
    let element = |index: usize| {
        let element = PAGE_HEADER + index * ELEMENT;
        let begin = element.checked_add(length_at(page, element + 4)?).ok_or(TRUNCATED_PAGE)?;
        let middle = begin.checked_add(length_at(page, element + 8)?).ok_or(TRUNCATED_PAGE)?;
        let end = middle.checked_add(length_at(page, element + 12)?).ok_or(TRUNCATED_PAGE)?;
        Ok(Element {
            kind: u32_at(page, element)?,
            key: page.get(begin..middle).ok_or(TRUNCATED_PAGE)?,
            value: page.get(middle..end).ok_or(TRUNCATED_PAGE)?,
            at: middle,
        })
    };
    (0..usize::from(u16_at(page, 10)?)).map(element).collect()
}

/// Returns the child of a branch page that may contain a key.
fn branch(page: &[u8], key: &[u8]) -> Result<Option<u64>, Error> {
    let mut found = None;
    for index in 0..usize::from(u16_at(page, 10)?) {
        let element = PAGE_HEADER + index * ELEMENT;
        let begin = element.checked_add(length_at(page, element)?).ok_or(TRUNCATED_PAGE)?;
        let end = begin.checked_add(length_at(page, element + 4)?).ok_or(TRUNCATED_PAGE)?;
        if found.is_some() && page.get(begin..end).ok_or(TRUNCATED_PAGE)? > key {
            break;
        }
        found = Some(u64_at(page, element + 8)?);
    }
    Ok(found)
}
