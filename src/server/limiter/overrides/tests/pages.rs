//! A list of overrides, page by page.

use super::*;

#[tokio::test]
async fn a_list_is_read_page_by_page() {
    let one = replica(&SetClock::default(), None);
    for index in 0..25 {
        set(&one, key(&format!("k:{index:02}")), quota(9)).await;
    }
    let mut query = OverrideQuery {
        page_size: 10,
        ..OverrideQuery::default()
    };
    let mut keys = Vec::new();
    for (page, entries) in [10, 10, 5].into_iter().enumerate() {
        let list = one.overrides.list(&query).unwrap();
        assert_eq!(list.entries.len(), entries);
        keys.extend(
            list.entries
                .iter()
                .map(|listed| listed.subject.text().to_string()),
        );
        assert_eq!(list.next_page_token.is_empty(), page == 2);
        query.page_token = list.next_page_token;
        // What the page ended with may be gone by then.
        let last = keys.last().unwrap().clone();
        one.overrides
            .delete("free", key(&last), None)
            .await
            .unwrap();
    }
    let expected: Vec<String> = (0..25).map(|index| format!("k:{index:02}")).collect();
    assert_eq!(keys, expected);
    for wrong in ["x", "free:k:runtim:k", "free:z:runtime:k"] {
        query.page_token = wrong.to_owned();
        assert!(
            one.overrides
                .list(&query)
                .unwrap_err()
                .contains("page_token"),
            "{wrong}"
        );
    }
    query.page_size = 1_001;
    assert!(
        one.overrides
            .list(&query)
            .unwrap_err()
            .contains("page_size is 1001")
    );
}
