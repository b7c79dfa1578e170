//! Downloads from servers that behave, and from those that do not.

mod faults;
mod lab;
mod resume;
mod server;
mod whole;
