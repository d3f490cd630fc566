//! Lines of JSON, and the field at which one goes wrong.

use serde::Deserialize;

/// What a line says.
///
/// # Errors
/// What is wrong with it. Where it stands is for others to say: to a reader of JSON every line is the first.
pub(super) fn read<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|error| {
        let said = error.to_string();
        let fault = said.rsplit_once(" at line ").map_or(said.as_str(), |(fault, _)| fault);
        faulty_field::<T>(line).map_or_else(|| fault.to_owned(), |field| format!("`{field}`: {fault}"))
    })
}

/// The field at which a line that cannot be read goes wrong; none where it does as a whole. Read once more for it: to keep
/// track of fields would cost every line.
fn faulty_field<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Option<String> {
    let mut json = serde_json::Deserializer::from_slice(line);
    let error = serde_path_to_error::deserialize::<_, T>(&mut json).err()?;
    let fields = error.path();
    fields.iter().next().is_some().then(|| fields.to_string())
}
