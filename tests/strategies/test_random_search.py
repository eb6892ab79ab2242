from tests.contracts.strategy import OrderedContract


class TestRandomSearch(OrderedContract):
    name = "random"
