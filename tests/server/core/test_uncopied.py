from hypothesis import given
from hypothesis import strategies as st

from cosmodrome_server.core.uncopied import Uncopied


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 1 << 40)),
            st.tuples(st.just("drop"), st.integers(0, 60)),
            st.tuples(st.just("restart"), st.just(0)),
        ),
        max_size=60,
    )
)
def test_it_is_a_list_whose_beginning_is_dropped(steps: list[tuple[str, int]]) -> None:
    model: list[tuple[int, int]] = []
    queue = Uncopied()
    position = 0
    for what, value in steps:
        if what == "add":
            position += 3
            queue.add(value, position)
            model.append((value, position))
        elif what == "drop":
            queue.drop_up_to(3 * value + 1)
            model = [entry for entry in model if entry[1] > 3 * value + 1]
        else:
            queue = Uncopied(queue.row())
        assert list(queue) == model
        assert len(queue) == len(model)
        assert queue.first(2, 1) == model[1:3]
        assert queue.oldest == (model[0][1] if model else None)


def test_a_copy_goes_its_own_way() -> None:
    queue = Uncopied()
    queue.add(5, 1)
    other = queue.copy()
    queue.add(6, 2)
    other.drop_up_to(1)
    assert list(queue) == [(5, 1), (6, 2)]
    assert list(other) == []
