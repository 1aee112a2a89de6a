# Fits and draws without a seed: in the script itself, in forked workers, and in those of a cluster started in turn.
at <- Sys.time()  # behind a loop that polls it would be another read of the clock
x <- runif(50)
model <- lm(3 * x + rnorm(50, sd = 0.1) ~ x)
print(coef(model), digits = 15)
print(kmeans(x, 3)$size)
print(unlist(parallel::mclapply(1:4, function(task) runif(1), mc.cores = 2)), digits = 15)
cluster <- parallel::makeCluster(2, setup_strategy = "sequential")
print(unlist(parallel::clusterApply(cluster, 1:2, function(task) runif(1))), digits = 15)
parallel::stopCluster(cluster)
saveRDS(list(coefficients = coef(model), at = at), "model.rds")
