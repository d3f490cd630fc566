//! Requests to `POST /generate`, SGLang's own endpoint: completions in other words. They are said in OpenAI's, so that all
//! that follows is the same; what is left is how their answers look.

use axum::body::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

/// New tokens where a request does not say, as in SGLang.
const MAX_NEW_TOKENS: u32 = 128;

/// The fields that matter here; SGLang knows many more.
#[derive(Deserialize)]
struct Fields {
    text: Option<Value>,
    input_ids: Option<Value>,
    #[serde(default)]
    sampling_params: Option<Sampling>,
    #[serde(default)]
    stream: bool,
    rid: Option<Rid>,
}

#[derive(Default, Deserialize)]
struct Sampling {
    max_new_tokens: Option<u32>,
    n: Option<u32>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Rid {
    One(String),
    Each(Vec<String>),
}

/// What of a request its answer needs.
pub(super) struct Asked {
    /// Whether there are several prompts, or there could be.
    pub(super) is_list: bool,
    rid: Option<Rid>,
}

/// The request as a body of `/v1/completions`, and what its answer needs.
///
/// # Errors
/// In words, where it is no such request.
pub(super) fn as_completion(body: &[u8]) -> Result<(Bytes, Asked), String> {
    let fields: Fields = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let (prompt, is_list) = match (fields.text, fields.input_ids) {
        (Some(text), None) => {
            let is_list = text.is_array();
            (text, is_list)
        }
        (None, Some(ids)) => {
            let is_list = ids.get(0).is_some_and(Value::is_array);
            (ids, is_list)
        }
        _ => return Err("either `text` or `input_ids` must be given".to_owned()),
    };
    let sampling = fields.sampling_params.unwrap_or_default();
    let completion = json!({
        "prompt": prompt,
        "max_tokens": sampling.max_new_tokens.unwrap_or(MAX_NEW_TOKENS),
        "n": sampling.n.unwrap_or(1),
        "stream": fields.stream,
    });
    Ok((completion.to_string().into(), Asked { is_list, rid: fields.rid }))
}

impl Asked {
    /// What the sequence at this place is called: by the request's own name if it has one, else by `name`.
    pub(super) fn id(&self, name: &str, place: usize, of_several: bool) -> String {
        let given = match &self.rid {
            Some(Rid::Each(names)) => names.get(place).cloned(),
            Some(Rid::One(name)) if !of_several => Some(name.clone()),
            Some(Rid::One(name)) => Some(format!("{name}_{place}")),
            None => None,
        };
        given.unwrap_or_else(|| if of_several { format!("{name}_{place}") } else { name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(body: &Value) -> Result<(Value, bool), String> {
        let (completion, asked) = as_completion(body.to_string().as_bytes())?;
        Ok((serde_json::from_slice(&completion).unwrap(), asked.is_list))
    }

    #[test]
    fn a_request_is_a_completion_in_other_words() {
        let completion =
            |prompt: Value, most: u32, n: u32| json!({"prompt": prompt, "max_tokens": most, "n": n, "stream": false});
        for (body, expected) in [
            (json!({"text": "a", "top_k": 3}), (completion(json!("a"), 128, 1), false)),
            (json!({"text": ["a"], "sampling_params": {"n": 2}}), (completion(json!(["a"]), 128, 2), true)),
            (
                json!({"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 3, "temperature": 0}}),
                (completion(json!([1, 2]), 3, 1), false),
            ),
            (json!({"input_ids": [[1], [2]], "sampling_params": null}), (completion(json!([[1], [2]]), 128, 1), true)),
        ] {
            assert_eq!(said(&body), Ok(expected), "{body}");
        }
        for body in [json!({}), json!({"text": "a", "input_ids": [1]}), json!({"text": "a", "stream": 3}), json!([])] {
            assert!(said(&body).is_err(), "{body}");
        }
    }

    #[test]
    fn sequences_are_called_by_the_requests_own_name() {
        for (rid, of_several, expected) in [
            (json!(null), false, ["7", "7"]),
            (json!(null), true, ["7_0", "7_1"]),
            (json!("a"), false, ["a", "a"]),
            (json!("a"), true, ["a_0", "a_1"]),
            (json!(["a", "b"]), true, ["a", "b"]),
            (json!(["a"]), true, ["a", "7_1"]),
        ] {
            let (_, asked) = as_completion(json!({"text": "x", "rid": rid}).to_string().as_bytes()).unwrap();
            assert_eq!([0, 1].map(|place| asked.id("7", place, of_several)), expected, "{rid}");
        }
    }
}
