//! Type unification: type variables and assignability.

use crate::types::Type;

/// The bindings of type variables. A failed attempt is rolled back.
#[derive(Default)]
pub(crate) struct Types {
    bound: Vec<Option<Type>>,
    trail: Vec<(usize, Option<Type>)>,
}

impl Types {
    pub(crate) fn fresh(&mut self) -> Type {
        self.bound.push(None);
        Type::Param((self.bound.len() - 1) as u32)
    }

    /// Replaces the parameters of a declaration with fresh variables. `made` has those of the same call.
    pub(crate) fn instantiate(&mut self, ty: &Type, variables: &mut Vec<Option<Type>>) -> Type {
        match ty {
            Type::Param(at) => {
                let at = *at as usize;
                if variables.len() <= at {
                    variables.resize(at + 1, None);
                }
                variables[at].get_or_insert_with(|| self.fresh()).clone()
            }
            other => other.rebuilt(&mut |below| self.instantiate(below, variables)),
        }
    }

    fn shallow(&self, ty: &Type) -> Type {
        let mut ty = ty;
        while let Type::Param(at) = ty {
            match self.bound.get(*at as usize).and_then(Option::as_ref) {
                Some(bound) => ty = bound,
                None => break,
            }
        }
        ty.clone()
    }

    /// Returns the type with its bound variables replaced.
    pub(crate) fn resolve(&self, ty: &Type) -> Type {
        self.shallow(ty).rebuilt(&mut |below| self.resolve(below))
    }

    /// Returns the type with its bound variables replaced, and unbound ones as `dyn`.
    pub(crate) fn settle(&self, ty: &Type) -> Type {
        match self.shallow(ty) {
            Type::Param(_) => Type::Dyn,
            other => other.rebuilt(&mut |below| self.settle(below)),
        }
    }

    fn bind(&mut self, at: u32, ty: Type) {
        let place = &mut self.bound[at as usize];
        self.trail.push((at as usize, place.replace(ty)));
    }

    /// Reports whether a value of type `from` is assignable to `to`. Variables are bound only on success.
    pub(crate) fn assign(&mut self, from: &Type, to: &Type) -> bool {
        self.attempt(|this| this.unify(from, to))
    }

    pub(crate) fn assign_all(&mut self, from: &[Type], to: &[Type]) -> bool {
        from.len() == to.len()
            && self.attempt(|this| from.iter().zip(to).all(|(from, to)| this.unify(from, to)))
    }

    fn attempt(&mut self, act: impl FnOnce(&mut Self) -> bool) -> bool {
        let mark = self.trail.len();
        let unified = act(self);
        if !unified {
            while self.trail.len() > mark {
                if let Some((at, before)) = self.trail.pop() {
                    self.bound[at] = before;
                }
            }
        }
        unified
    }

    /// Reports whether two types can be made equal, and binds their variables.
    fn unify(&mut self, from: &Type, to: &Type) -> bool {
        if let Type::Param(at) = to
            && let Some(bound) = self.bound[*at as usize].clone()
        {
            return self.widen(*at, &bound, from);
        }
        if let Type::Param(at) = from
            && let Some(bound) = self.bound[*at as usize].clone()
        {
            return self.widen(*at, &bound, to);
        }
        match (from, to) {
            (Type::Param(a), Type::Param(b)) if a == b => true,
            (other, Type::Param(at)) | (Type::Param(at), other) => {
                if self.has_variable(other, *at) {
                    return false;
                }
                self.bind(*at, other.clone());
                true
            }
            (a, b) if a.is_dyn() || b.is_dyn() => true,
            (Type::Null, Type::Null) => true,
            (Type::Null, other) | (other, Type::Null) => matches!(
                other,
                Type::Object(_)
                    | Type::Opaque(_)
                    | Type::Optional(_)
                    | Type::Timestamp
                    | Type::Duration
            ),
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => {
                self.unify(a, b)
            }
            // Types of any types are comparable.
            (Type::Type(_), Type::Type(_)) => true,
            (Type::Map(a), Type::Map(b)) => self.unify(&a.0, &b.0) && self.unify(&a.1, &b.1),
            (a, b) => a == b,
        }
    }

    /// Generalizes a bound variable to include another assignable type.
    fn widen(&mut self, at: u32, bound: &Type, other: &Type) -> bool {
        if !self.unify(other, bound) {
            return false;
        }
        let general = self.general(bound, other);
        if general != *bound && !self.has_variable(&general, at) {
            self.bind(at, general);
        }
        true
    }

    /// Returns the more general of two mutually assignable types.
    pub(crate) fn general(&self, a: &Type, b: &Type) -> Type {
        let (a, b) = (self.shallow(a), self.shallow(b));
        match (&a, &b) {
            _ if a.is_dyn() => a,
            _ if b.is_dyn() => b,
            (Type::Null, _) => b,
            (Type::List(x), Type::List(y)) => Type::list(self.general(x, y)),
            (Type::Optional(x), Type::Optional(y)) => Type::optional(self.general(x, y)),
            (Type::Map(x), Type::Map(y)) => {
                Type::map(self.general(&x.0, &y.0), self.general(&x.1, &y.1))
            }
            _ => a,
        }
    }

    /// Returns a common type of two types, or `dyn`.
    pub(crate) fn join(&mut self, a: &Type, b: &Type) -> Type {
        if self.assign(b, a) { self.general(a, b) } else { Type::Dyn }
    }

    fn has_variable(&self, ty: &Type, at: u32) -> bool {
        match self.shallow(ty) {
            Type::Param(other) => other == at,
            other => other.parameters().any(|below| self.has_variable(below, at)),
        }
    }
}
