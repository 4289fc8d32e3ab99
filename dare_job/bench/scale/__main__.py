from dare_job.bench.scale.command import main

main()
