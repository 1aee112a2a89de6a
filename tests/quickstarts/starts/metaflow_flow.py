"""Metaflow's tutorial: a flow of three steps, each a process."""

from metaflow import FlowSpec, step


class TrainFlow(FlowSpec):
    @step
    def start(self) -> None:
        import numpy as np

        self.x = np.random.randn(100, 3)
        self.y = self.x.sum(1)
        self.next(self.fit)

    @step
    def fit(self) -> None:
        from sklearn.linear_model import SGDRegressor

        self.coefficients = SGDRegressor(max_iter=20).fit(self.x, self.y).coef_
        self.next(self.end)

    @step
    def end(self) -> None:
        import numpy as np

        np.save("coefficients.npy", self.coefficients)
        print("RESULT", self.coefficients[0])


if __name__ == "__main__":
    TrainFlow()
