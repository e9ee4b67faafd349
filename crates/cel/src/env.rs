//! What an expression may speak of: variables, functions by version, types that it may make.

use std::sync::Arc;

use crate::{
    cost::Cost,
    decls::{self, Library, Overload},
    error::Issues,
    macros::Macros,
    parser,
    program::Program,
    types::{Decl, Field, Object, Shape, Type},
};

/// The newest minor version of Kubernetes whose libraries are here.
pub const LATEST: u32 = 36;

/// An environment that expressions are compiled in.
#[derive(Clone, Debug)]
pub struct Env {
    version: u32,
    mutation: bool,
    bindings: bool,
    strict: bool,
    container: String,
    pub(crate) variables: Vec<Variable>,
    objects: Vec<Arc<Object>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) ty: Type,
    /// What bounds its size, for estimates.
    pub(crate) decl: Option<Decl>,
}

impl Default for Env {
    fn default() -> Self {
        Self::kubernetes(LATEST)
    }
}

impl Env {
    /// The environment of `v1.{minor}`, without variables.
    pub fn kubernetes(minor: u32) -> Self {
        Self {
            version: minor,
            mutation: false,
            bindings: false,
            strict: minor >= 29,
            container: String::new(),
            variables: Vec::new(),
            objects: Vec::new(),
        }
    }

    /// Adds a variable of a schema. Its place in the row of variables is its place in the values of an evaluation.
    #[must_use]
    pub fn variable(mut self, name: &str, decl: Decl) -> Self {
        let (name, ty) = (name.to_owned(), decl.cel_type());
        self.variables.push(Variable { name, ty, decl: Some(decl) });
        self
    }

    /// Adds a variable that is there or not, `oldSelf` with `optionalOldSelf`.
    #[must_use]
    pub fn optional_variable(mut self, name: &str, decl: Decl) -> Self {
        let (name, ty) = (name.to_owned(), Type::optional(decl.cel_type()));
        self.variables.push(Variable { name, ty, decl: Some(decl) });
        self
    }

    /// Adds a variable of a type without bounds.
    #[must_use]
    pub fn typed(mut self, name: &str, ty: Type) -> Self {
        self.variables.push(Variable { name: name.to_owned(), ty, decl: None });
        self
    }

    /// Keeps the place of a variable that expressions do not have here.
    #[must_use]
    pub fn without(self) -> Self {
        self.typed("", Type::Dyn)
    }

    /// Adds what mutating policies have besides: `jsonpatch.escapeKey`, `JSONPatch{…}`, and `Object{…}` with
    /// `Object.spec{…}` and whatever else is below, named by the way there.
    #[must_use]
    pub fn with_mutation(mut self) -> Self {
        let text = Decl::new(Shape::String, u64::MAX, 2);
        let field = |name: &str, decl: &Decl| Field {
            name: name.into(),
            key: name.into(),
            decl: decl.clone(),
        };
        let fields = [("op", &text), ("path", &text), ("from", &text), ("value", &Decl::ANY)];
        let fields = fields.map(|(name, decl)| field(name, decl)).to_vec();
        self.objects.push(Object::new("JSONPatch", fields));
        Self { mutation: true, ..self }
    }

    /// Adds `cel.bind(variable, value, expression)`, which selectors of devices have.
    #[must_use]
    pub fn with_bindings(self) -> Self {
        Self { bindings: true, ..self }
    }

    /// Names are looked for in this namespace and those around it.
    #[must_use]
    pub fn in_container(self, container: &str) -> Self {
        Self { container: container.to_owned(), ..self }
    }

    /// Lists and maps that are written out may hold items of several types, as plain CEL has it.
    #[must_use]
    pub fn with_mixed_literals(self) -> Self {
        Self { strict: false, ..self }
    }

    pub(crate) fn strict(&self) -> bool {
        self.strict
    }

    pub(crate) fn container(&self) -> &str {
        &self.container
    }

    /// The type of the values of a program is `program.result()`.
    pub fn compile(&self, text: &str) -> Result<Program, Issues> {
        let parsed = parser::parse(text, self.macros())?;
        Program::new(self, parsed)
    }

    /// Compiles and estimates: the least and the most that an evaluation costs, given the bounds of the variables.
    pub fn estimate(&self, text: &str) -> Result<Cost, Issues> {
        Ok(self.compile(text)?.estimate)
    }

    pub(crate) fn macros(&self) -> Macros {
        Macros {
            optionals: self.version >= 28,
            two_variables: self.version >= 32,
            sort_by: self.version >= 34,
            bind: self.bindings,
        }
    }

    /// The overloads of a function that this environment has.
    pub(crate) fn overloads(&self, name: &str) -> Vec<&'static Overload> {
        let has = |library| match library {
            Library::Since(minor) => minor <= self.version,
            Library::Mutation => self.mutation,
        };
        decls::overloads(name).iter().filter(|overload| has(overload.library)).collect()
    }

    /// The type of a message that is written out with these fields. What a mutating policy applies may have any.
    pub(crate) fn message<'f>(
        &self,
        name: &str,
        fields: impl Iterator<Item = &'f str>,
    ) -> Option<Arc<Object>> {
        let applied = self.mutation && (name == "Object" || name.starts_with("Object."));
        if !applied {
            return self.object(name).cloned();
        }
        let field = |name: &str| Field { name: name.into(), key: name.into(), decl: Decl::ANY };
        Some(Object::new(name, fields.map(field).collect()))
    }

    fn object(&self, name: &str) -> Option<&Arc<Object>> {
        self.objects.iter().find(|object| *object.name == *name)
    }

    /// A type by name, as an expression of a type's type.
    pub(crate) fn named_type(&self, name: &str) -> Option<Type> {
        // Not names of their own, but of functions.
        if matches!(name, "dyn" | "timestamp" | "duration") {
            return None;
        }
        decls::named(name).or_else(|| self.object(name).cloned().map(Type::Object)).or_else(|| {
            let known =
                decls::OPAQUE.iter().find(|(n, since)| *n == name && *since <= self.version);
            known.map(|(name, _)| Type::Opaque(name))
        })
    }

    /// The names that a name may stand for, the innermost first. A leading dot is for the outermost alone.
    pub(crate) fn candidates<'n>(&'n self, name: &'n str) -> impl Iterator<Item = String> + 'n {
        let (container, name) = match name.strip_prefix('.') {
            Some(name) => ("", name),
            None => (self.container.as_str(), name),
        };
        let mut rest = Some(container).filter(|c| !c.is_empty());
        let mut last = false;
        std::iter::from_fn(move || match rest {
            Some(within) => {
                rest = within.rsplit_once('.').map(|(outer, _)| outer);
                Some(format!("{within}.{name}"))
            }
            None if !last => {
                last = true;
                Some(name.to_owned())
            }
            None => None,
        })
    }
}
