//! Writes documents member by member, so that no document is in memory as a tree or as text.

use std::io::{self, Write};

use flate2::{read::GzDecoder, write::GzEncoder};
use serde_json::{Map, Value};

use super::form::Form;

/// Encodes a document as a protobuf message.
pub(super) type ProtobufEncoder = fn(&Value) -> Vec<u8>;

/// Writes the members of nested objects, in JSON or protobuf.
///
/// In protobuf, every member becomes a message of the whole document. Decoders merge such messages when they follow
/// each other, as the specification of the encoding demands.
pub(super) struct MemberWriter<W> {
    form: Form,
    protobuf: ProtobufEncoder,
    /// The names of the open objects, from the outside to the inside.
    open: Vec<&'static str>,
    is_first: bool,
    out: W,
}

impl<W: Write> MemberWriter<W> {
    /// Creates a writer of the document's members.
    pub(super) fn document(form: Form, protobuf: ProtobufEncoder, out: W) -> io::Result<Self> {
        let mut writer = Self { form, protobuf, open: Vec::new(), is_first: true, out };
        writer.write_json(b"{")?;
        Ok(writer)
    }

    /// Creates a writer of members of the object `name`, for [`MemberWriter::append`].
    pub(super) fn members(&self, name: &'static str) -> MemberWriter<GzEncoder<Vec<u8>>> {
        let (form, protobuf) = (self.form, self.protobuf);
        let out = GzEncoder::new(Vec::new(), flate2::Compression::fast());
        MemberWriter { form, protobuf, open: vec![name], is_first: true, out }
    }

    /// Starts an object. The following members are its members, until [`MemberWriter::close`].
    pub(super) fn open(&mut self, name: &'static str) -> io::Result<()> {
        self.write_name(name)?;
        self.write_json(b"{")?;
        self.open.push(name);
        self.is_first = true;
        Ok(())
    }

    pub(super) fn close(&mut self) -> io::Result<()> {
        self.open.pop();
        self.is_first = false;
        self.write_json(b"}")
    }

    pub(super) fn member(&mut self, name: &str, value: Value) -> io::Result<()> {
        self.write_name(name)?;
        if self.form == Form::Json {
            // The compression has a cost for each write, so it gets the member at once.
            return self.out.write_all(&serde_json::to_vec(&value)?);
        }
        let within = |inner: Value, name: &str| {
            let object: Map<String, Value> = [(name.to_owned(), inner)].into_iter().collect();
            object.into()
        };
        let names = std::iter::once(name).chain(self.open.iter().rev().copied());
        let document = names.fold(value, within);
        self.out.write_all(&(self.protobuf)(&document))
    }

    /// Adds an object whose members another writer has written.
    pub(super) fn append(
        &mut self,
        name: &'static str,
        members: MemberWriter<GzEncoder<Vec<u8>>>,
    ) -> io::Result<()> {
        self.open(name)?;
        io::copy(&mut GzDecoder::new(&*members.out.finish()?), &mut self.out)?;
        self.close()
    }

    /// Ends the document and returns what it was written to.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.write_json(b"}")?;
        Ok(self.out)
    }

    /// Writes the name of a JSON member, after a comma unless it is the first one.
    fn write_name(&mut self, name: &str) -> io::Result<()> {
        let is_first = std::mem::replace(&mut self.is_first, false);
        if self.form == Form::Protobuf {
            return Ok(());
        }
        if !is_first {
            self.out.write_all(b",")?;
        }
        serde_json::to_writer(&mut self.out, name)?;
        self.out.write_all(b":")
    }

    fn write_json(&mut self, text: &[u8]) -> io::Result<()> {
        if self.form == Form::Json { self.out.write_all(text) } else { Ok(()) }
    }
}
