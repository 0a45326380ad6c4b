"""How the commands of one cluster meet, agree on the job, and notice who is gone."""
