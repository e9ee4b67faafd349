//! The environment of an expression: variables, the functions of a version, and object types.

use std::sync::Arc;

use crate::{
    function::{Availability, Library},
    macros::Macros,
    natives::LIBRARIES,
    overloads::{self, Overload},
    types::{Decl, Field, Object, Shape, Type},
};

/// The newest supported minor version of Kubernetes.
pub const LATEST: u32 = 36;

/// An environment in which expressions are compiled.
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
    /// The declaration that bounds the size for estimates; `None` if unbounded.
    pub(crate) decl: Option<Decl>,
}

impl Default for Env {
    fn default() -> Self {
        Self::kubernetes(LATEST)
    }
}

impl Env {
    /// Creates the environment of `v1.{minor}` without variables.
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

    /// Adds a variable with a schema. Its index among the variables is its index in the values of an evaluation.
    #[must_use]
    pub fn variable(mut self, name: &str, decl: Decl) -> Self {
        let (name, ty) = (name.to_owned(), decl.cel_type());
        self.variables.push(Variable { name, ty, decl: Some(decl) });
        self
    }

    /// Adds an optional variable, such as `oldSelf` with `optionalOldSelf`.
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

    /// Reserves the index of a variable that this environment does not have.
    #[must_use]
    pub fn without(self) -> Self {
        self.typed("", Type::Dyn)
    }

    /// Adds the declarations for mutating policies: `jsonpatch.escapeKey`, `JSONPatch{…}`, and `Object{…}` with nested
    /// types that are named by their field path, such as `Object.spec{…}`.
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

    /// Adds `cel.bind(variable, value, expression)`, for device selectors.
    #[must_use]
    pub fn with_bindings(self) -> Self {
        Self { bindings: true, ..self }
    }

    /// Sets the container: names are resolved in this namespace and its parents.
    #[must_use]
    pub fn in_container(self, container: &str) -> Self {
        Self { container: container.to_owned(), ..self }
    }

    /// Allows list and map literals with elements of several types, as in standard CEL.
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

    pub(crate) fn macros(&self) -> Macros {
        Macros {
            optionals: self.version >= 28,
            two_variables: self.version >= 32,
            sort_by: self.version >= 34,
            bind: self.bindings,
        }
    }

    /// Returns the overloads of a function in this environment.
    pub(crate) fn overloads(&self, name: &str) -> Vec<&'static Overload> {
        overloads::find(name).iter().filter(|overload| self.has(overload.library)).collect()
    }

    fn has(&self, library: &Library) -> bool {
        match library.availability {
            Availability::Since(minor) => minor <= self.version,
            Availability::Mutation => self.mutation,
        }
    }

    /// Returns the type of a message literal with these fields. Objects of mutating policies may have any fields.
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

    /// Returns the type with this name.
    pub(crate) fn named_type(&self, name: &str) -> Option<Type> {
        // These are only function names.
        if matches!(name, "dyn" | "timestamp" | "duration") {
            return None;
        }
        let opaque = || {
            let libraries = LIBRARIES.iter().filter(|library| self.has(library));
            let name = libraries.flat_map(|library| library.types).find(|ty| **ty == name)?;
            Some(Type::Opaque(name))
        };
        let object = || self.object(name).cloned().map(Type::Object);
        Type::from_name(name).or_else(object).or_else(opaque)
    }

    /// Returns the qualified names that a name may refer to, innermost first. A leading dot selects the outermost only.
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
