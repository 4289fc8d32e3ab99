from dare_job.bench.gpu.command import main

main()
