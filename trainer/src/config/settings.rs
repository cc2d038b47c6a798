//! One place for a setting: its type, its meaning, its default.

/// A section of the configuration.
///
/// The first paragraph of a field's documentation is what `headlong config show` prints of the
/// key: the unit, the choices, what an unset key means. Without `= VALUE`, the default is that of
/// the type.
macro_rules! settings {
    (
        $(#[doc = $about:literal])*
        $(#[derive($($derive:ident),*)])?
        pub struct $Name:ident [$section:literal] {
            $(
                $(#[doc = $doc:literal])*
                $(#[serde($($serde:tt)*)])?
                pub $field:ident: $type:ty $(= $default:expr)?,
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Debug, Clone, PartialEq, $($($derive,)*)? serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct $Name {
            $(
                $(#[doc = $doc])*
                $(#[serde($($serde)*)])?
                pub $field: $type,
            )*
        }

        impl Default for $Name {
            fn default() -> Self {
                Self { $($field: settings!(@default $($default)?),)* }
            }
        }

        impl $Name {
            /// Every field by its dotted path.
            pub(super) const FIELDS: &[crate::config::keys::Field] = &[
                $((concat!($section, ".", stringify!($field)), &[$($doc),*]),)*
            ];
        }
    };
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}

/// An entry of a list of sections, such as `[[table]]`: as `settings!`, without defaults, because
/// what an entry leaves out is taken from the sections that are there once.
macro_rules! entry {
    (
        $(#[doc = $about:literal])*
        #[derive($($derive:ident),*)]
        pub struct $Name:ident [$section:literal] {
            $(
                $(#[doc = $doc:literal])*
                $(#[serde($($serde:tt)*)])?
                pub $field:ident: $type:ty,
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive($($derive),*)]
        #[serde(deny_unknown_fields)]
        pub struct $Name {
            $(
                $(#[doc = $doc])*
                $(#[serde($($serde)*)])?
                pub $field: $type,
            )*
        }

        impl $Name {
            /// Its keys.
            pub(super) const KEYS: &[&str] = &[$(stringify!($field)),*];
            /// Every field by its dotted path.
            pub(super) const FIELDS: &[crate::config::keys::Field] = &[
                $((concat!($section, ".", stringify!($field)), &[$($doc),*]),)*
            ];
        }
    };
}
