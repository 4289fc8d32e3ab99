from dare_job.bench.gpu.measure import main

main()
